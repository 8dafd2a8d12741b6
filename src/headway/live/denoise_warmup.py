"""Runs a diffusion engine before it counts as ready, and learns from it what its work takes at first (SPEC F2).

Every shape goes through all stages, alone and in batches of every size up to 8 and of powers of two, up to its largest
(SPEC F8), the usual one as one request and as several; where edits are taken, each begins from a picture once too.
`cost.diffusion`'s formula is fitted to what some of them took. What plans take later corrects it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Final

import msgspec

from headway.core.artifacts import Denoised, StagePeaks, StageTimes
from headway.core.errors import EngineError
from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.ports import CountsMemory, DenoiseEngine
from headway.core.reports import DenoiseCoefficients, DenoiseMemory, WarmShape
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.cost.batch_sizes import batch_sizes
from headway.cost.diffusion_memory import Limits, Peak, needed_bytes
from headway.cost.diffusion_memory import fitted as fitted_memory
from headway.live.checkpoint_warmup import checkpoint_ns
from headway.live.denoise_fit import Measured, fitted
from headway.live.picture_warmup import Learned, begun_from, beside_words, with_edits, with_image_prompts
from headway.live.settling import PASSES_MAX, Mark, Settled, settle
from headway.sched.diffusion.params import shape_sides
from headway.sched.diffusion.warming import Stock, warming

log = logging.getLogger(__name__)
_STEPS: Final = 2  # of every measured request; one that is only warmed runs one
_RUNS: Final = 3  # of every kind; the first is not measured


class Probes(msgspec.Struct, frozen=True):
    """What is run: every shape with its largest batch in pictures, and the smaller ones."""

    batches: tuple[tuple[DenoiseShape, int], ...]
    form: str  # png; mp4 of a model that makes videos
    fps: int = 0
    is_own_work: bool = False  # all of it is done by the thread that runs the engine: no process of a stage beside it
    edits: bool = False  # pictures to begin from are taken: one is encoded too
    image_prompts: bool = False  # and pictures beside the words
    passes_max: int = PASSES_MAX  # repeated over all of it, until the device's allocator takes nothing new


class Clocks(msgspec.Struct, frozen=True):
    """What a run took, and how much of that its thread had a processor."""

    wall_ns: Callable[[], int] = perf_counter_ns
    busy_ns: Callable[[], int] = thread_time_ns


class Warm(msgspec.Struct, frozen=True):
    """An engine is warm: what its work takes, and the shapes whose largest batch did not fit, with the one that did."""

    cost: DenoiseCoefficients
    caps: tuple[tuple[DenoiseShape, int], ...] = ()
    memory: DenoiseMemory | None = None  # what its work holds; None: it does not tell
    shapes: tuple[WarmShape, ...] = ()  # that have run, in batches of all sizes up to theirs
    settled: Settled = Settled()

    @property
    def words(self) -> str:
        """What is warm, for people."""
        return f"warm: {'; '.join(shape.words for shape in self.shapes) or 'nothing'}; {self.settled.words}"

    def within(self, room: int | None, pictures_max: int | None) -> "Warm":
        """With the bytes that its work may hold, and the most pictures of one forward pass."""
        cost, memory = msgspec.structs.replace(self.cost, pictures_max=pictures_max), self.memory
        if memory is not None:
            memory = msgspec.structs.replace(memory, room=room, pictures_max=pictures_max)
        return msgspec.structs.replace(self, cost=cost, memory=memory)


_Brings = tuple[DenoiseShape, Callable[[DiffusionRequest], DiffusionRequest]]  # a picture, of requests of a shape


class NoRoom(EngineError):
    """Out of memory."""


def warm_up_denoiser(
    engine: DenoiseEngine,
    probes: Probes,
    start: DenoiseCoefficients,
    clocks: Clocks | None = None,
    room: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Warm:
    """Run all of it; `tell` hears of each warm shape. Patch, stride, text tokens, passes of `start` stay in the cost.

    Raises EngineError; a batch that has no room, or by what smaller ones held would need more than `room` bytes, caps
    its shape instead. One picture without room is an error.
    """
    measured: list[Measured] = []
    caps, shapes = list[tuple[DenoiseShape, int]](), list[WarmShape]()
    watch, number = clocks or Clocks(), 1
    for shape, largest in probes.batches:
        fit, first_ns = 0, _first_ns(Bench(engine, probes, watch), shape, number - 1)
        for pictures in batch_sizes(largest):
            is_usual = shape == probes.batches[0][0]
            try:
                if pictures > 1 and room is not None:
                    _check_room(engine, measured, _request(probes, shape, pictures, number), start, room)
                if pictures == 1 or (pictures == largest and is_usual):
                    measured.append(_measured(Bench(engine, probes, watch), shape, pictures, number))
                else:
                    _run(engine, [_request(probes, shape, pictures, number, 1)])
                if is_usual and pictures > 1:  # as many prompts are encoded together
                    _run(engine, [_request(probes, shape, 1, number + _RUNS + k, 1) for k in range(pictures)])
            except NoRoom as error:
                if pictures == 1:
                    raise
                log.warning("%s; batches of its shape are capped at %d", error, fit)
                caps.append((shape, fit))
                break
            number, fit = number + _RUNS + pictures, pictures
        alone = next(one for one in measured if one.shape == shape and one.pictures == 1)
        price = (*checkpoint_ns(engine, _request(probes, shape, 1, number)), max(0, first_ns - alone.once_ns))
        number += _RUNS + 1
        shapes.append(WarmShape(*shape_sides(shape), fit, *price))
        tell(f"{shapes[-1].words} ({len(shapes)} of {len(probes.batches)})")
    cost = fitted(measured, msgspec.structs.replace(start, joined_tokens_max=_limits(engine).joined_tokens_max))
    peaks = [Peak(one.shape, one.pictures, one.peaks) for one in measured if one.peaks is not None]
    memory = fitted_memory(peaks, cost, _limits(engine)) if peaks else None
    bench = Bench(engine, probes, watch)
    (cost, memory), takes = _with_pictures(bench, number, (cost, memory))
    fits = [(shape, one.batch) for (shape, _), one in zip(probes.batches, shapes, strict=True)]
    fresh = number + 3 * _RUNS + len(fits)  # the same prompts each time: what is kept of them takes memory once
    settled = settle(engine, lambda mark: _repeat(bench, fits, takes, fresh, mark), probes.passes_max)
    return Warm(cost, tuple(caps), memory, tuple(shapes), settled)


def _with_pictures(bench: "Bench", number: int, learned: Learned) -> tuple[Learned, list[_Brings]]:
    """What is known with pictures that requests bring, and the kinds of them that are taken."""
    takes, usual = list[_Brings](), bench.probes.batches[0][0]
    if bench.probes.edits:
        plain, learned = learned, with_edits(bench, number, *learned)
        if learned[0] is not plain[0]:
            takes += [(usual, begun_from), *_edits(bench, number + 3 * _RUNS)]
    if bench.probes.image_prompts:
        learned = with_image_prompts(bench, number + _RUNS, *learned)
        takes.append((usual, beside_words))
    return learned, takes


def _edits(bench: "Bench", number: int) -> Iterator[_Brings]:
    """Encode a picture to begin from in every shape but the usual one; those where that worked."""
    for shape, _ in bench.probes.batches[1:]:
        try:
            _run(bench.engine, [begun_from(_request(bench.probes, shape, 1, number))])
        except EngineError as error:
            log.warning("%s; no edit of that size has run", error)
        else:
            yield shape, begun_from
        number += 1


def _repeat(
    bench: "Bench", fits: Sequence[tuple[DenoiseShape, int]], takes: Sequence[_Brings], number: int, mark: Mark
) -> None:
    """One step of all that is warm: every shape in batches of all sizes, from a checkpoint, and with pictures."""
    engine, probes = bench.engine, bench.probes
    for shape, fit in fits:
        for pictures in batch_sizes(fit):
            _run(engine, [_request(probes, shape, pictures, number, 1)])
            if shape == fits[0][0] and pictures > 1:
                _run(engine, [_request(probes, shape, 1, number + 1 + k, 1) for k in range(pictures)])
            number += 1 + pictures
            mark(f"a batch of {pictures} at {shape.width}x{shape.height}, {shape.frames} frame(s),")
        checkpoint_ns(engine, _request(probes, shape, 1, number))
        number += 1
        mark(f"a checkpoint of {shape.width}x{shape.height}, {shape.frames} frame(s),")
    for shape, brings in takes:
        _run(engine, [brings(_request(probes, shape, 1, number))])
        number += 1
        mark(f"a picture brought to {shape.width}x{shape.height}")


def _limits(engine: DenoiseEngine) -> Limits:
    if not isinstance(engine, CountsMemory):
        return Limits()
    return Limits(
        tile_pixels=engine.tile_pixels,
        joined_tokens_max=engine.joined_tokens_max,
        decodes_max=engine.decodes_max,
        joined_pixels_max=engine.joined_pixels_max,
        encodes_max=engine.encodes_max,
    )


def _check_room(
    engine: DenoiseEngine,
    measured: Sequence[Measured],
    request: DiffusionRequest,
    start: DenoiseCoefficients,
    room: int,
) -> None:
    """Raise NoRoom for a batch that is predicted not to fit: on a host nobody refuses an allocation, and a process that
    took too much is killed."""
    seen = [Peak(one.shape, one.pictures, one.peaks) for one in measured if one.peaks is not None]
    alike = [peak for peak in seen if peak.shape == request.shape]
    needed = needed_bytes(fitted_memory(alike, start, _limits(engine)), start, request) if alike else 0
    if needed > room:
        size = f"{request.width}x{request.height}, {request.frames} frame(s), {request.n} of them"
        raise NoRoom(f"the warm-up of {size} would need {needed} bytes, {room} are there")


class Bench(msgspec.Struct, frozen=True):
    """What is measured, and by what."""

    engine: DenoiseEngine
    probes: Probes
    clocks: Clocks

    def share(self, wall_ns: int, busy_ns: int) -> float:
        """Of a run, in which its thread had a processor."""
        return min(1.0, busy_ns / wall_ns) if self.probes.is_own_work and busy_ns and wall_ns else 1.0

    def request(self, number: int) -> DiffusionRequest:
        """One picture of the usual shape."""
        return _request(self.probes, self.probes.batches[0][0], 1, number)

    def timed(self, request: DiffusionRequest) -> tuple[StageTimes, float]:
        """What its stages took, and the share of that in which the thread had a processor. Raises EngineError."""
        began_ns, busy_ns = self.clocks.wall_ns(), self.clocks.busy_ns()
        times = _run(self.engine, [request])
        return times, self.share(self.clocks.wall_ns() - began_ns, self.clocks.busy_ns() - busy_ns)

    def counted(self, request: DiffusionRequest) -> StagePeaks | None:
        """What it held; None: the engine does not tell. Raises EngineError."""
        return _counted(self.engine, [request])


def _first_ns(bench: Bench, shape: DenoiseShape, number: int) -> int:
    """One picture in one step, before anything of its shape has run."""
    began_ns, busy_ns = bench.clocks.wall_ns(), bench.clocks.busy_ns()
    times = _run(bench.engine, [_request(bench.probes, shape, 1, number, 1)])
    share = bench.share(bench.clocks.wall_ns() - began_ns, bench.clocks.busy_ns() - busy_ns)
    return round((times.text_encode_ns + times.denoise_ns + times.vae_decode_ns) * share)


def _measured(bench: Bench, shape: DenoiseShape, pictures: int, first: int) -> Measured:
    """The faster of two after a first: what is compiled, allocated or read for the first time is not the work's.

    Replicas that warm up side by side share the processors: with two on one core a step takes twice its time, and will
    not once they are ready. So times are taken by the share of each run in which its thread had a processor; one that
    waits for a device polls, and has it.
    """
    peaks = _counted(bench.engine, [_request(bench.probes, shape, pictures, first)])
    runs = []
    for again in range(1, _RUNS):
        began_ns, busy_ns = bench.clocks.wall_ns(), bench.clocks.busy_ns()
        times = _run(bench.engine, [_request(bench.probes, shape, pictures, first + again)])
        wall_ns, busy_ns = bench.clocks.wall_ns() - began_ns, bench.clocks.busy_ns() - busy_ns
        share = bench.share(wall_ns, busy_ns)
        text_ns, decode_ns = round(times.text_encode_ns * share), round(times.vae_decode_ns * share)
        runs.append(Measured(shape, pictures, text_ns, times.denoise_ns * share / _STEPS, decode_ns, peaks))
    return min(runs, key=lambda run: run.step_ns)


def _request(probes: Probes, shape: DenoiseShape, pictures: int, number: int, steps: int = _STEPS) -> DiffusionRequest:
    return warming(Stock(form=probes.form, fps=probes.fps), shape, pictures, number, steps)


def _run(engine: DenoiseEngine, requests: Sequence[DiffusionRequest]) -> StageTimes:
    return _stages(engine.run(_plan(requests)), requests)


def _counted(engine: DenoiseEngine, requests: Sequence[DiffusionRequest]) -> StagePeaks | None:
    """Run them; what they held where the engine can tell."""
    if not isinstance(engine, CountsMemory):
        _run(engine, requests)
        return None
    done, peaks = engine.run_counted(_plan(requests))
    _stages(done, requests)
    return peaks


def _plan(requests: Sequence[DiffusionRequest]) -> DenoisePlan:
    """All steps in one plan. Plans and sequences are numbered below 0, which no machine uses."""
    first = requests[0]
    shape, number = first.shape, -1 - first.seed
    rows = tuple(DenoiseRow(-1 - one.seed, 0, one.steps, one.steps, one.n) for one in requests)
    new = tuple(NewDenoise(-1 - one.seed, one) for one in requests)
    return DenoisePlan(number, number - 1, rows, shape.height, shape.width, shape=shape, new=new)


def _stages(done: Denoised, requests: Sequence[DiffusionRequest]) -> StageTimes:
    """What it took. Raises EngineError for a row that failed."""
    shape = requests[0].shape
    if done.failed or done.stages is None:
        failure = done.failed[0] if done.failed else None
        why = failure.message if failure is not None else "it does not tell what its stages take"
        size = f"{shape.width}x{shape.height}, {shape.frames} frame(s), {sum(one.n for one in requests)} of them"
        kind = NoRoom if failure is not None and failure.code == "out_of_memory" else EngineError
        raise kind(f"the warm-up of {size} failed: {why}")
    return done.stages
