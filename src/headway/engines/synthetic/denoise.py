"""A denoiser without a model: each batch takes the time that its steps and pixels cost, and pictures are drawn from a
hash.

A picture depends on all that the request says and on every denoise step: each step hashes the state of the one before,
so that a request which went on from a wrong checkpoint, or missed a step, ends in another picture. Pictures and
previews are PNG whatever form was asked; a video is an MP4 of PNG frames.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Final

import msgspec

from headway.core.artifacts import BAD_CHECKPOINT, BAD_INPUT, Denoised, Made, RowFailed, RowMade, StageTimes
from headway.core.errors import InvariantError, RequestError
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise, StepTiming
from headway.core.request import DiffusionRequest
from headway.core.units import Ns, s_from_ns
from headway.engines.synthetic.pictures import grid_png, png_movie

_SIGNATURES: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF", b"GIF8")  # of pictures that are accepted


class DenoiserParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Wall time of one denoise step of a batch: `step_ns` and `pixel_ns` for every pixel of every row."""

    step_ns: int = 1_000_000
    pixel_ns: float = 0.05
    encode_ns: int = 0  # of the prompt of one new row
    decode_ns: int = 0  # of one finished row
    row_pixels_max: int | None = None  # a row with more, all its pictures and frames, is out of memory


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint: how far a request was, and the hash of each of its pictures then."""

    done: int
    states: tuple[bytes, ...]


class _Latents(msgspec.Struct, frozen=True, array_like=True, tag="synthetic-latents-1"):
    """What the next chunk of a streaming session goes on from: the end of one video, as a hash."""

    model: str
    height: int
    width: int
    frames: int
    state: bytes


class _Kept(msgspec.Struct):
    """What is kept of one row until it is over."""

    request: DiffusionRequest
    done: int
    states: tuple[bytes, ...]


class SyntheticDenoiser:
    """Runs batches one after the other, in the caller's thread. Rows that no plan introduced only take their time."""

    def __init__(self, params: DenoiserParams, clock: Callable[[], Ns] = time.monotonic_ns) -> None:
        self._params, self._clock = params, clock
        self._kept: dict[int, _Kept] = {}

    def batch_ns(self, plan: DenoisePlan) -> Ns:
        """How long the steps of a batch take: its rows run together, its steps one after the other."""
        steps = max(row.count for row in plan.rows)
        pixels = plan.height * plan.width * len(plan.rows)
        return round((self._params.step_ns + self._params.pixel_ns * pixels) * steps)

    def run(self, plan: DenoisePlan) -> Denoised:
        """Run one batch to its end."""
        launched_ns = self._clock()
        stages = self._stages(plan)
        time.sleep(s_from_ns(stages.text_encode_ns + stages.denoise_ns + stages.vae_decode_ns))
        for seq in plan.leave:
            self._kept.pop(seq, None)
        failed = [failure for new in plan.new if (failure := self._begin(new)) is not None]
        made = [self._step(plan, row, self._kept[row.seq]) for row in plan.rows if row.seq in self._kept]
        timing = StepTiming(launched_ns, launched_ns, self._clock())
        return Denoised(timing, stages, tuple(row for row in made if row.made), tuple(failed))

    @property
    def held(self) -> int:
        """Rows whose state is kept."""
        return len(self._kept)

    def _stages(self, plan: DenoisePlan) -> StageTimes:
        encoded = sum(not new.request.begun for new in plan.new)
        decoded = sum(row.start + row.count == row.total for row in plan.rows)
        return StageTimes(
            text_encode_ns=encoded * self._params.encode_ns,
            denoise_ns=self.batch_ns(plan),
            vae_decode_ns=decoded * self._params.decode_ns,
        )

    def _begin(self, new: NewDenoise) -> RowFailed | None:
        """Take a request in, from its beginning or its checkpoint."""
        request = new.request
        pixels, most = request.shape.pixels * request.n, self._params.row_pixels_max
        if most is not None and pixels > most:
            words = (
                f"request {request.id} wants {pixels} pixels, there is room for {most}; ask for fewer or smaller ones"
            )
            return RowFailed(new.seq, "out_of_memory", words)
        try:
            _check(request)
            self._kept[new.seq] = _resumed(request) if request.begun else _fresh(request)
        except RequestError as error:
            return RowFailed(new.seq, error.code, str(error))
        return None

    def _step(self, plan: DenoisePlan, row: DenoiseRow, kept: _Kept) -> RowMade:
        if row.start != kept.done:
            raise InvariantError(f"sequence {row.seq} has {kept.done} steps, plan {plan.step} goes on from {row.start}")
        for step in range(row.start, row.start + row.count):
            kept.states = tuple(_hash(state, step.to_bytes(4, "big")) for state in kept.states)
        kept.done += row.count
        if kept.done == row.total:
            del self._kept[row.seq]
            return RowMade(row.seq, _finished(kept))
        made = []
        if row.seq in plan.save:
            saved = msgspec.msgpack.encode(_Saved(kept.done, kept.states))
            made.append(Made("checkpoint", saved, steps=kept.done))
        if row.seq in plan.show:
            request = kept.request
            shown = grid_png(request.height, request.width, kept.states[0])
            number = sum(step <= kept.done for step in request.preview_steps)
            made.append(Made("preview", shown, max(0, number - 1), kept.done, request.seed))
        return RowMade(row.seq, tuple(made))


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def _check(request: DiffusionRequest) -> None:
    content = request.content
    if content.form == "mp4" and request.fps < 1:
        raise RequestError(
            f"request {request.id} wants a video at {request.fps} frames per second; at least 1", code=BAD_INPUT
        )
    sent = content.pictures if content.mask is None else (*content.pictures, content.mask)
    for n, body in enumerate((*sent, *content.image_prompts)):
        if not body.startswith(_SIGNATURES):
            raise RequestError(
                f"picture {n} is no PNG, JPEG, WebP or GIF: it begins with {body[:4]!r}",
                code=BAD_INPUT,
            )
    _check_chunk(request)


def _check_chunk(request: DiffusionRequest) -> None:
    """Raise RequestError for what no chunk goes on from (SPEC H5)."""
    if (fault := request.chunk_fault) is not None:
        raise RequestError(fault, code=BAD_INPUT)
    if (request.given_frames or request.hand_on) and request.content.form != "mp4":
        raise RequestError(f"a chunk is a video, made as mp4, not {request.content.form}", code=BAD_INPUT)
    if not request.given_frames:
        return
    try:
        given = msgspec.msgpack.decode(request.content.given, type=_Latents)
    except msgspec.MsgspecError as error:
        raise RequestError(f"the latents of the given frames are unreadable: {error}", code=BAD_INPUT) from error
    wanted = (request.model, request.height, request.width, request.given_frames)
    if (given.model, given.height, given.width, given.frames) != wanted:
        raise RequestError(
            f"the latents that came are of {given.frames} frames of {given.width}x{given.height} by {given.model!r}, "
            f"given_frames is {request.given_frames} of {request.width}x{request.height} by {request.model!r}",
            code=BAD_INPUT,
        )


def _fresh(request: DiffusionRequest) -> _Kept:
    return _Kept(request, 0, tuple(_hash(_asked(request), str(request.seed + k).encode()) for k in range(request.n)))


def _asked(request: DiffusionRequest) -> bytes:
    """All that decides the pictures, and nothing of who asked, when, or in which form the answer is wanted."""
    content = request.content
    decisive = (
        (content.prompt, content.negative_prompt, content.pictures, content.mask, content.given),
        (request.model, request.steps, request.height, request.width, request.frames, request.given_frames),
        (request.guidance_scale, request.passes, request.strength, request.solver, request.quality, request.dtype),
        (request.loras, request.control_nets, request.image_prompts, request.reference_tokens),
    )
    shown = (content.image_prompts, request.image_prompt_scale) if content.image_prompts else ()
    return msgspec.msgpack.encode((*decisive, *shown))


def _resumed(request: DiffusionRequest) -> _Kept:
    try:
        saved = msgspec.msgpack.decode(request.checkpoint, type=_Saved)
    except msgspec.MsgspecError as error:
        raise RequestError(
            f"the checkpoint of request {request.id} is unreadable: {error}", code=BAD_CHECKPOINT
        ) from error
    if saved.done != request.begun or len(saved.states) != request.n:
        raise RequestError(
            f"request {request.id} has begun {request.begun} steps of {request.n} pictures, its checkpoint holds "
            f"{saved.done} steps of {len(saved.states)}",
            code=BAD_CHECKPOINT,
        )
    return _Kept(request, saved.done, saved.states)


def _finished(kept: _Kept) -> tuple[Made, ...]:
    request = kept.request
    if request.content.form == "mp4":
        shown = range(request.given_frames, request.frames)
        keys = (_hash(kept.states[0], frame.to_bytes(4, "big")) for frame in shown)
        frames = [grid_png(request.height, request.width, key) for key in keys]
        movie = png_movie(frames, request.height, request.width, request.fps)
        video = Made("video", movie, 0, kept.done, request.seed)
        return (_handed_on(kept), video) if request.hand_on else (video,)
    return tuple(
        Made("picture", grid_png(request.height, request.width, state), k, kept.done, request.seed + k)
        for k, state in enumerate(kept.states)
    )


def _handed_on(kept: _Kept) -> Made:
    request = kept.request
    last = _Latents(request.model, request.height, request.width, request.hand_on, kept.states[0])
    return Made("latents", msgspec.msgpack.encode(last), 0, kept.done, request.seed)
