"""Pictures that requests begin from: those of rows that begin together are encoded beside each other."""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import torch

from headway.core.artifacts import BAD_INPUT
from headway.core.errors import RequestError
from headway.core.plans import NewDenoise
from headway.core.request import DiffusionRequest
from headway.engines.diffusion.families.protocol import Family, Size, TakesPictures
from headway.engines.diffusion.faults import caught
from headway.engines.diffusion.pictures import open_picture
from headway.engines.diffusion.stages import Stages


class Encoding(msgspec.Struct, frozen=True):
    """A picture on its way. `wait` gives its clean grid latents, one for each generator, and raises what went wrong."""

    sides: tuple[int, int]  # of the client's picture: width, height
    generators: list[torch.Generator]  # of the request; the noise comes after what the encoder draws
    wait: Callable[[], torch.Tensor]


class Encodes:
    """`check` raises what is wrong with a request before its picture is read."""

    def __init__(self, family: Family, stages: Stages, check: Callable[[DiffusionRequest, Size], None]) -> None:
        self._family, self._stages, self._check = family, stages, check
        self._ahead: deque[NewDenoise] = deque()
        self._begun: dict[int, Encoding] = {}

    def expect(self, news: Sequence[NewDenoise]) -> None:
        """Rows that begin now, in order. What rows that failed have left goes."""
        self._begun.clear()
        self._ahead = deque(new for new in news if new.request.content.pictures and not new.request.begun)

    def of(self, new: NewDenoise) -> Encoding:
        """The picture of a row, begun, and with it as many of the next ones as are encoded beside each other: more of
        them would only be held. Raises RequestError."""
        while self._ahead and len(self._begun) < self._stages.encodes_max:
            ahead = self._ahead.popleft()
            with caught(_ignored):  # which row it is of shows when that row begins
                self._begun[ahead.seq] = self._begin(ahead.request)
        begun = self._begun.pop(new.seq, None)
        return self._begin(new.request) if begun is None else begun

    def _begin(self, request: DiffusionRequest) -> Encoding:
        family, size = self._family, size_of(request)
        self._check(request, size)
        if not isinstance(family, TakesPictures):
            raise RequestError("this model takes no pictures", code=BAD_INPUT)
        picture = open_picture(request.content.pictures[0])
        generators = [torch.Generator().manual_seed(request.seed + k) for k in range(request.n)]
        pixels = family.prepare_picture(picture, size)
        return Encoding(picture.size, generators, self._stages.encoding(pixels, generators))


def size_of(request: DiffusionRequest) -> Size:
    """What it asks for."""
    return Size(request.height, request.width, request.frames, request.given_frames)


def _ignored(_error: Exception) -> None:
    """The row begins by itself, and says it then."""
