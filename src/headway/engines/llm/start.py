"""Starts the engine of a device."""

from collections.abc import Callable
from typing import Literal

import torch

from headway.core.units import Ns
from headway.engines.llm.cuda import CudaDevice
from headway.engines.llm.device_engine import DeviceLlmEngine
from headway.engines.llm.engine import TorchLlmEngine
from headway.engines.llm.loading import EngineSettings

DeviceChoice = Literal["auto", "cpu", "cuda"]


def start_engine(
    settings: EngineSettings, device: DeviceChoice, clock: Callable[[], Ns]
) -> TorchLlmEngine | DeviceLlmEngine:
    """auto: CUDA where torch sees it. Raises ConfigError where what was asked for by name is not there."""
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return DeviceLlmEngine(settings, CudaDevice(), clock)
    return TorchLlmEngine(settings, clock)
