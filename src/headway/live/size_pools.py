"""The shares of a model's replicas that take only some sizes."""

from typing import Annotated

import msgspec

from headway.core.request import DenoiseShape


class SizePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas that take only some sizes, so that short work does not wait for long."""

    replicas: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # to begin with: fleet.shape_pools lets them move
    pixels_min: Annotated[int, msgspec.Meta(ge=0)] = 0  # of a request, all frames
    pixels_max: Annotated[int, msgspec.Meta(ge=1)] | None = None  # unset: any

    def takes(self, shape: DenoiseShape) -> bool:
        """True for a shape of so many pixels."""
        return self.pixels_min <= shape.pixels and (self.pixels_max is None or shape.pixels <= self.pixels_max)
