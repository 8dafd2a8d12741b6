"""A replica is ready once its device's allocator takes nothing new for what is warm (SPEC E1)."""

from collections.abc import Sequence

import pytest

from headway.core.artifacts import Denoised
from headway.core.errors import EngineError
from headway.core.events import StepDone
from headway.core.plans import DenoisePlan, StepPlan
from headway.core.ports import Reserved
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DenoiseShape
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser
from headway.engines.synthetic.engine import SyntheticEngine, SyntheticParams
from headway.live.config_diffusion import DiffusionSettings, probes_of
from headway.live.denoise_warmup import Probes, warm_up_denoiser
from headway.live.settling import Mark, Settled, settle
from headway.live.warmup import warm_up
from headway.sched.executor.buckets import Buckets

MIB = 1 << 20
START = DenoiseCoefficients(1e9, 1e9, 1e9, 0.0, patch=8, text_tokens=16, passes=2)


class Allocator:
    """Takes a segment of 2 MiB where it is told to; `freed` of them are given back."""

    def __init__(self) -> None:
        self.segments = self.freed = 0

    def reserved(self) -> Reserved:
        return Reserved((self.segments - self.freed) * 2 * MIB, self.segments * 2 * MIB, self.segments)


class Passes:
    """A warm-up of two parts; in each pass its second takes so many segments."""

    def __init__(self, taken: Sequence[int], are_freed: bool = False) -> None:
        self.allocator, self.ran = Allocator(), 0
        self._taken, self._are_freed = taken, are_freed

    def again(self, mark: Mark) -> None:
        mark("bucket 1")
        more = self._taken[self.ran]
        self.allocator.segments += more
        self.allocator.freed += more if self._are_freed else 0
        mark("bucket 8")
        self.ran += 1


# SPEC E1
@pytest.mark.parametrize(("taken", "passes"), [((0, 9, 9), 1), ((3, 0, 9), 2), ((3, 1, 0), 3)])
def test_passes_are_repeated_until_one_takes_nothing(taken: tuple[int, ...], passes: int) -> None:
    warm_up = Passes(taken)
    held = sum(taken[: passes - 1]) * 2 * MIB
    assert settle(warm_up.allocator, warm_up.again, 3) == Settled(passes, held)
    assert warm_up.ran == passes


# SPEC E1
@pytest.mark.parametrize("are_freed", [False, True])  # what comes and goes with every pass has not settled either
def test_one_that_never_settles_is_refused_and_says_what_grew(are_freed: bool) -> None:
    warm_up = Passes((4, 2, 1), are_freed)
    words = f"in repeated pass 3 of at most 3 over what is warm bucket 8 took {2 * MIB} bytes in 1 segments; "
    with pytest.raises(EngineError, match=words) as raised:
        settle(warm_up.allocator, warm_up.again, 3)
    assert f"{0 if are_freed else 14 * MIB} bytes are reserved; raise settle_passes_max" in str(raised.value)


# SPEC E1
def test_without_an_allocator_nothing_is_repeated_and_that_is_said() -> None:
    class OnHost:
        def reserved(self) -> None:
            return None

    for engine in (OnHost(), object()):
        warm_up = Passes(())
        settled = settle(engine, warm_up.again, 3)
        assert (settled.words, warm_up.ran) == ("this device has no memory pool to fill first", 0)


class OnDevice(SyntheticEngine):
    """Steps padded to `rows` take a segment, the first `growing` times."""

    def __init__(self, rows: int, growing: int) -> None:
        super().__init__(SyntheticParams(check=True))
        self._rows, self._growing, self._memory = rows, growing, Allocator()
        self.plans: list[StepPlan] = []

    def reserved(self) -> Reserved:
        return self._memory.reserved()

    def run(self, plan: StepPlan) -> StepDone:
        self.plans.append(plan)
        if plan.bucket == self._rows and self._memory.segments < self._growing:
            self._memory.segments += 1
        return super().run(plan)


# SPEC E1
def test_an_llm_replica_repeats_every_bucket_until_nothing_is_taken() -> None:
    engine = OnDevice(rows=8, growing=3)  # a prefill and a decode in each pass
    warm = warm_up(engine, Buckets((1, 8)), decodes_max=8)
    assert warm.settled.words == f"allocator settled at repeated pass 2, {6 * MIB} bytes reserved"
    numbers = [plan.step for plan in engine.plans]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 0
    plans = [(plan.kind, plan.bucket) for plan in engine.plans[:-1]]
    third = len(plans) // 3
    assert plans == 3 * plans[:third]
    assert {("prefill", 8), ("decode", 8), ("decode", 1)} <= set(plans[:third])


# SPEC E1
def test_a_bucket_that_always_takes_more_keeps_an_llm_replica_from_being_ready() -> None:
    engine = OnDevice(rows=8, growing=100)
    words = f"a prompt of 8 tokens and 1 decodes, padded to 8 rows, took {4 * MIB} bytes in 2 segments"
    with pytest.raises(EngineError, match=f"repeated pass 2 .*{words}"):
        warm_up(engine, Buckets((1, 8)), decodes_max=8, passes_max=2)


class DenoiserOnDevice(SyntheticDenoiser):
    """Batches of `pictures` take a segment, the first `growing` times."""

    def __init__(self, pictures: int, growing: int) -> None:
        super().__init__(DenoiserParams(step_ns=1))
        self._pictures, self._growing, self._memory = pictures, growing, Allocator()

    def reserved(self) -> Reserved:
        return self._memory.reserved()

    def run(self, plan: DenoisePlan) -> Denoised:
        if sum(row.pictures for row in plan.rows) == self._pictures and self._memory.segments < self._growing:
            self._memory.segments += 1
        return super().run(plan)


# SPEC E1, F8
def test_a_denoiser_repeats_every_shape_and_batch_until_nothing_is_taken() -> None:
    probes = Probes(((DenoiseShape(64, 64), 2), (DenoiseShape(96, 64), 3)), "png", edits=True, image_prompts=True)
    engine = DenoiserOnDevice(pictures=3, growing=2)  # the larger shape's largest batch, once in each pass
    settled = warm_up_denoiser(engine, probes, START).settled
    assert (settled, engine.held) == (Settled(2, 4 * MIB), 0)
    with pytest.raises(EngineError, match=r"a batch of 3 at 64x96, 1 frame\(s\), took 2097152 bytes in 1 segments"):
        warm_up_denoiser(DenoiserOnDevice(pictures=3, growing=100), probes, START)


# SPEC E1
def test_the_configured_bound_is_what_a_denoiser_repeats() -> None:
    model = DiffusionSettings(name="m", engine="synthetic", size="64x64", settle_passes_max=7)
    with pytest.raises(EngineError, match="repeated pass 7 of at most 7"):
        warm_up_denoiser(DenoiserOnDevice(pictures=1, growing=1000), probes_of(model), START)
