"""What makes pictures in a simulation: a hash in place of latents, one link for every denoise step.

A picture tells every step that it went through and from which seed, so that one that lost a step, or went on from
somebody else's checkpoint, is another picture.
"""

from hashlib import blake2b

import msgspec

from headway.core.artifacts import BAD_INPUT, ArtifactKind, Made, RowFailed, RowMade
from headway.core.errors import InvariantError
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import DiffusionRequest

Painted = tuple[tuple[RowMade, ...], tuple[RowFailed, ...]]


def first_state(request: DiffusionRequest, index: int) -> bytes:
    """The noise of one of its pictures."""
    said = f"{request.model} {request.content.prompt} {request.seed + index}".encode()
    return _hash(said + request.content.given)


def next_state(state: bytes, step: int) -> bytes:
    """One denoise step, counted from 0."""
    return _hash(state + step.to_bytes(4, "big"))


def picture_alone(request: DiffusionRequest, index: int = 0) -> bytes:
    """Return the picture as it is where nothing else runs and nothing fails."""
    state = first_state(request, index)
    for step in range(request.steps):
        state = next_state(state, step)
    return state


def latents_of(request: DiffusionRequest, state: bytes) -> bytes:
    """What a chunk of a streaming session hands on, of a finished picture (SPEC H5)."""
    return _mark(request) + _hash(state + request.hand_on.to_bytes(4, "big"))


def _mark(request: DiffusionRequest) -> bytes:
    """Latents are of one model and size."""
    return f"latents {request.model} {request.width}x{request.height} ".encode()


def _hash(said: bytes) -> bytes:
    return blake2b(said, digest_size=16).digest()


class _Canvas(msgspec.Struct):
    request: DiffusionRequest
    done: int
    states: list[bytes]


class Painter:
    """The engine of one simulated diffusion replica. It refuses plans that a real one could not run."""

    def __init__(self) -> None:
        self.canvases: dict[int, _Canvas] = {}

    def apply(self, plan: DenoisePlan) -> Painted:
        """Do what a plan says; return what it made, and which rows failed. Raises InvariantError for a wrong plan."""
        for seq in plan.leave:
            if self.canvases.pop(seq, None) is None:
                raise InvariantError(f"plan {plan.step} forgets sequence {seq}, which is not here")
        failed = tuple(failure for new in plan.new if (failure := self._begin(new)) is not None)
        over = {failure.seq for failure in failed}
        made = [self._run(plan, row) for row in plan.rows if row.seq not in over]
        return tuple(row for row in made if row.made), failed

    def lose(self) -> None:
        """The engine failed: nothing is here any more."""
        self.canvases.clear()

    def _begin(self, new: NewDenoise) -> RowFailed | None:
        request = new.request
        if any(not picture for picture in request.content.pictures):
            return RowFailed(new.seq, BAD_INPUT, "a picture is empty")
        if (fault := request.chunk_fault) is not None:
            return RowFailed(new.seq, BAD_INPUT, fault)
        if request.given_frames and not request.content.given.startswith(_mark(request)):
            return RowFailed(new.seq, BAD_INPUT, "the latents of the given frames are of another model or size")
        if request.begun:
            states = [request.checkpoint[at : at + 16] for at in range(0, 16 * request.n, 16)]
        else:
            states = [first_state(request, index) for index in range(request.n)]
        self.canvases[new.seq] = _Canvas(request, request.begun, states)
        return None

    def _run(self, plan: DenoisePlan, row: DenoiseRow) -> RowMade:
        canvas = self.canvases.get(row.seq)
        if canvas is None or canvas.done != row.start:
            raise InvariantError(f"plan {plan.step} runs {row}, of which this engine has {canvas}")
        request = canvas.request
        for step in range(row.start, row.start + row.count):
            canvas.states = [next_state(state, step) for state in canvas.states]
        canvas.done += row.count
        made = []
        if row.seq in plan.save:
            made.append(Made("checkpoint", b"".join(canvas.states), steps=canvas.done))
        if row.seq in plan.show:
            made.append(Made("preview", canvas.states[0], steps=canvas.done))
        if canvas.done == row.total:
            kind: ArtifactKind = "video" if request.frames > 1 else "picture"
            if request.hand_on:
                made += [Made("latents", latents_of(request, s), k, canvas.done) for k, s in enumerate(canvas.states)]
            for index, state in enumerate(canvas.states):
                made.append(Made(kind, state, index, canvas.done, request.seed + index))
            del self.canvases[row.seq]
        return RowMade(row.seq, tuple(made))
