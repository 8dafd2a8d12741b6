"""Requests for diffusion tests."""

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import DiffusionRequest


def picture(name: str, steps: int = 3, size: int = 64) -> DiffusionRequest:
    return DiffusionRequest(RequestId(name), TenantId("default"), ModelId("m"), steps, size, size, 1, 0)
