"""What pictures that requests bring take of an engine, before it counts as ready: one to begin from, and one beside the
words (SPEC F2)."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from headway.core.artifacts import StagePeaks, StageTimes
from headway.core.errors import EngineError
from headway.core.reports import DenoiseCoefficients, DenoiseMemory
from headway.core.request import DiffusionRequest
from headway.cost.diffusion_memory import Peak, with_edit, with_image_prompt
from headway.engines.synthetic.pictures import grid_png

log = logging.getLogger(__name__)
_RUNS: Final = 3  # of every kind; the first is not timed

Learned = tuple[DenoiseCoefficients, DenoiseMemory | None]


class Bench(Protocol):
    """Runs requests of the usual shape."""

    def request(self, number: int) -> DiffusionRequest:
        """One that nobody asked for."""
        ...

    def timed(self, request: DiffusionRequest) -> tuple[StageTimes, float]:
        """What its stages took, and the share of that in which the thread had a processor."""
        ...

    def counted(self, request: DiffusionRequest) -> StagePeaks | None:
        """What it held; None: the engine does not tell."""
        ...


class _Trial(msgspec.Struct, frozen=True):
    """The faster of two after a first, by stage in ns, and what the first held."""

    request: DiffusionRequest
    image_ns: float
    encode_ns: float
    denoise_ns: float
    peak: Peak | None


def begun_from(request: DiffusionRequest) -> DiffusionRequest:
    """It begins from a picture of its size."""
    content = msgspec.structs.replace(request.content, pictures=(_picture(request, 0),))
    return msgspec.structs.replace(request, content=content, strength=0.5)


def beside_words(request: DiffusionRequest) -> DiffusionRequest:
    """It has a picture beside its words, another for each seed."""
    content = msgspec.structs.replace(request.content, image_prompts=(_picture(request, request.seed),))
    return msgspec.structs.replace(request, content=content, image_prompts=1)


def with_edits(bench: Bench, number: int, cost: DenoiseCoefficients, memory: DenoiseMemory | None) -> Learned:
    """What is known, with a picture to begin from; without where the model takes none after all."""

    try:
        trial = _tried(bench, lambda number: begun_from(bench.request(number)), number)
    except EngineError as error:
        log.warning("%s; edits are predicted without it", error)
        return cost, memory
    cost = msgspec.structs.replace(cost, begin_ns=trial.encode_ns / trial.request.shape.pixels)
    return cost, memory if memory is None or trial.peak is None else with_edit(memory, trial.peak)


def with_image_prompts(bench: Bench, number: int, cost: DenoiseCoefficients, memory: DenoiseMemory | None) -> Learned:
    """What is known, with a picture beside the words: its encoder, and its share of every step.

    Raises EngineError: an adapter was loaded for them. Of a guided request the black picture beside the other words is
    encoded once per size, and not counted.
    """
    trial = _tried(bench, lambda number: beside_words(bench.request(number)), number)
    plain = _tried(bench, bench.request, number + _RUNS)
    more = trial.denoise_ns / max(1.0, plain.denoise_ns) - 1.0
    cost = msgspec.structs.replace(cost, image_prompt_ns=trial.image_ns, image_prompt_share=max(0.0, more))
    return cost, memory if memory is None or trial.peak is None else with_image_prompt(memory, cost, trial.peak)


def _tried(bench: Bench, ask: Callable[[int], DiffusionRequest], first: int) -> _Trial:
    request = ask(first)
    peaks = bench.counted(request)
    runs = [bench.timed(ask(number)) for number in range(first + 1, first + _RUNS)]
    return _Trial(
        request,
        min(times.image_encode_ns * share for times, share in runs),
        min(times.vae_encode_ns * share for times, share in runs),
        min(times.denoise_ns * share for times, share in runs),
        None if peaks is None else Peak(request.shape, 1, peaks),
    )


def _picture(request: DiffusionRequest, number: int) -> bytes:
    return grid_png(request.height, request.width, b"warm-up %d" % number)
