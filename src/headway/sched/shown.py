"""What a front has passed on of a picture or a video: the cursor that survives the loss of a replica."""

from collections.abc import Sequence

from msgspec.structs import replace

from headway.core.artifacts import Made
from headway.core.request import DiffusionRequest


class Shown:
    """Of one request, over all its replicas."""

    def __init__(self, request: DiffusionRequest) -> None:
        self.done, self.total = request.begun, request.steps  # denoise steps
        self._previewed = request.begun  # steps of the last preview
        self._saved = request.begun
        self._checkpoint: Made | None = None  # the newest one
        self._kept: set[tuple[str, int]] = set()  # finished pictures, videos and latents, by kind and index
        self._wanted = request.n
        self._brought_bytes = len(request.checkpoint)

    @property
    def is_complete(self) -> bool:
        """All that was asked for has been passed on."""
        finished = sum(kind != "latents" for kind, _index in self._kept)  # those come before their video
        return finished >= self._wanted or ("video", 0) in self._kept

    @property
    def checkpoint_bytes(self) -> int:
        """Of the newest checkpoint, or the one that it came with."""
        return self._brought_bytes if self._checkpoint is None else len(self._checkpoint.body)

    def advance(self, done: int) -> bool:
        """A replica has come so far; False when the client has heard of it before."""
        if done <= self.done:
            return False
        self.done = done
        return True

    def take(self, made: Sequence[Made]) -> tuple[Made, ...]:
        """Return what the client has not got. A replica that goes on from a checkpoint makes some of it again."""
        fresh = tuple(one for one in made if self._is_new(one))
        for one in fresh:
            if one.kind == "preview":
                self._previewed = one.steps
            elif one.kind == "checkpoint":
                self._saved, self._checkpoint = one.steps, one
            else:
                self._kept.add((one.kind, one.index))
        return fresh

    def _is_new(self, one: Made) -> bool:
        if one.kind == "preview":  # of several pictures at once
            return one.steps > self._previewed
        if one.kind == "checkpoint":
            return one.steps > self._saved
        return (one.kind, one.index) not in self._kept

    def resumed(self, request: DiffusionRequest) -> DiffusionRequest:
        """Return the request as another replica goes on with it: from the newest checkpoint that came here."""
        saved = self._checkpoint
        return request if saved is None else replace(request, begun=saved.steps, checkpoint=saved.body)
