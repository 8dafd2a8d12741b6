"""A replica learns what its work takes before it is ready."""

import msgspec
import pytest

from headway.core.artifacts import Denoised, RowFailed, StagePeaks
from headway.core.errors import EngineError
from headway.core.ids import ModelId, NodeId
from headway.core.plans import DenoisePlan
from headway.core.ports import DeviceMemory
from headway.core.reports import DenoiseCoefficients, WarmShape
from headway.core.request import DenoiseShape
from headway.core.units import NS_PER_S
from headway.cost.diffusion import decode_ns, encode_ns, step_ns, tokens_of
from headway.cost.diffusion_belief import DenoiseCost
from headway.cost.diffusion_memory import decode_bytes, step_bytes
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser
from headway.live.assemble import Recipe, room_beside, warmed
from headway.live.denoise_fit import Measured, fitted
from headway.live.denoise_warmup import Clocks, Probes, warm_up_denoiser
from headway.live.host_memory import MEMORY_SHARE
from headway.live.spec import DiffusionSpec, PipelineSpec, ReplicaSpec
from headway.sched.diffusion.params import DiffusionParams, ShapeCap, largest_batch

START = DenoiseCoefficients(1e9, 1e9, 1e9, 0.0, patch=8, text_tokens=16, passes=2)
SMALL, LARGE = DenoiseShape(64, 64, passes=2), DenoiseShape(128, 128, passes=2)
TRUE = DenoiseCoefficients(
    0.0, 5e6, 2000.0, 3.0, patch=8, text_tokens=16, passes=2, is_floor_hidden=False, text_ns=4e5, decode_ns=7.0
)


def taken(shape: DenoiseShape, pictures: int) -> Measured:
    text_ns = round(encode_ns(TRUE, shape))
    return Measured(shape, pictures, text_ns, step_ns(TRUE, shape, pictures), round(decode_ns(TRUE, shape, pictures)))


def test_what_follows_the_formula_is_found_exactly() -> None:
    # SPEC F2
    found = fitted([taken(SMALL, 1), taken(SMALL, 4), taken(LARGE, 1)], START)
    for shape, pictures in ((SMALL, 2), (LARGE, 3), (DenoiseShape(96, 64, passes=2), 1)):
        assert step_ns(found, shape, pictures) == pytest.approx(step_ns(TRUE, shape, pictures))
        assert decode_ns(found, shape, pictures) == pytest.approx(decode_ns(TRUE, shape, pictures))
        assert encode_ns(found, shape) == pytest.approx(encode_ns(TRUE, shape))


# SPEC F2
def test_passes_that_run_apart_are_fitted_with_a_fixed_time_each() -> None:
    apart = msgspec.structs.replace(TRUE, joined_tokens_max=2 * 64)  # 64 latent tokens of the small one

    def one(shape: DenoiseShape, pictures: int) -> Measured:
        return msgspec.structs.replace(taken(shape, pictures), step_ns=step_ns(apart, shape, pictures))

    measured = [one(shape, pictures) for shape, pictures in ((SMALL, 1), (SMALL, 4), (LARGE, 1), (LARGE, 4))]
    start = msgspec.structs.replace(START, joined_tokens_max=2 * 64)
    found = fitted(measured, start)
    assert found.floor_ns == pytest.approx(apart.floor_ns, rel=1e-3)
    for shape in (SMALL, LARGE):
        for pictures in (1, 2, 3, 8):
            assert step_ns(found, shape, pictures) == pytest.approx(step_ns(apart, shape, pictures), rel=1e-6)


# SPEC F2
def test_a_warm_up_asks_the_engine_which_passes_run_apart() -> None:
    class Apart(Counting):
        joined_tokens_max = 64

    warm = warm_up_denoiser(Apart(DenoiserParams(step_ns=1)), Probes(((SMALL, 1),), "png"), START).within(None, 4)
    assert (warm.cost.joined_tokens_max, warm.cost.pictures_max) == (64, 4)


def test_one_shape_alone_gives_no_negative_cost() -> None:
    found = fitted([taken(SMALL, 1)], START)
    assert min(found.floor_ns, found.token_ns, found.pair_ns) >= 0
    assert step_ns(found, SMALL) == pytest.approx(step_ns(TRUE, SMALL))


def test_an_engine_is_run_and_keeps_nothing_of_it() -> None:
    engine = SyntheticDenoiser(DenoiserParams(step_ns=100_000, pixel_ns=0.0, encode_ns=1000, decode_ns=4096))
    shape = DenoiseShape(64, 64)
    cost = warm_up_denoiser(engine, Probes(((shape, 4),), "png"), START).cost
    assert step_ns(cost, shape, 4) == pytest.approx(100_000)
    assert encode_ns(cost, DenoiseShape(64, 64, passes=1)) == pytest.approx(1000)
    assert engine.held == 0


def test_a_shape_that_does_not_fit_ends_the_start() -> None:
    engine = SyntheticDenoiser(DenoiserParams(step_ns=1, row_pixels_max=64 * 64))
    with pytest.raises(EngineError, match="128x128, 1 frame"):
        warm_up_denoiser(engine, Probes(((SMALL, 1), (LARGE, 1)), "png"), START)


class Watched(SyntheticDenoiser):
    """Notes the pictures of every plan, by shape."""

    def __init__(self, params: DenoiserParams) -> None:
        super().__init__(params)
        self.ran: dict[tuple[int, int], set[int]] = {}

    def run(self, plan: DenoisePlan) -> Denoised:
        sizes = self.ran.setdefault((plan.height, plan.width), set())
        sizes.add(sum(row.pictures for row in plan.rows))
        return super().run(plan)


# SPEC F8
def test_every_shape_has_run_in_every_batch_size_up_to_its_largest() -> None:
    engine = Watched(DenoiserParams(step_ns=1))
    probes, told = Probes(((SMALL, 12), (LARGE, 8), (DenoiseShape(96, 64), 1)), "png"), list[str]()
    warm = warm_up_denoiser(engine, probes, START, tell=told.append)
    assert told == ["64x64 up to 12 (1 of 3)", "128x128 up to 8 (2 of 3)", "64x96 up to 1 (3 of 3)"]
    assert engine.ran == {(64, 64): {1, 2, 3, 4, 5, 6, 7, 8, 12}, (128, 128): {1, 2, 3, 4, 5, 6, 7, 8}, (96, 64): {1}}
    assert (warm.caps, engine.held) == ((), 0)


# SPEC F8
def test_a_batch_without_room_caps_its_shape_at_what_is_warm() -> None:
    engine = Watched(DenoiserParams(step_ns=1, row_pixels_max=5 * 64 * 64))
    warm = warm_up_denoiser(engine, Probes(((SMALL, 8), (LARGE, 4)), "png"), START)
    assert warm.caps == ((SMALL, 5), (LARGE, 1))
    machine = DiffusionParams(batch_max=8, caps=(ShapeCap(64, 64, 6), ShapeCap(96, 64, 2)))
    spec = ReplicaSpec(NodeId("r"), ModelId("m"), (), NodeId("c"), diffusion=DiffusionSpec(machine))
    built = warmed(Recipe(spec, 0, None), warm)
    assert built.cost == warm.cost
    assert built.spec.diffusion is not None
    machine = built.spec.diffusion.machine
    shapes = (SMALL, LARGE, DenoiseShape(96, 64), DenoiseShape(32, 32))
    assert [largest_batch(machine, shape) for shape in shapes] == [5, 1, 2, 8]


class Halved:
    """Another replica has the processor for half of the time."""

    def __init__(self) -> None:
        self.at_ns = 0

    def wall_ns(self) -> int:
        self.at_ns += 2000
        return self.at_ns

    def busy_ns(self) -> int:
        return self.at_ns // 2


def test_replicas_that_warm_up_side_by_side_do_not_believe_that_steps_take_twice_as_long() -> None:  # SPEC F2
    halved, shape = Halved(), DenoiseShape(64, 64, passes=1)
    clocks = Clocks(halved.wall_ns, halved.busy_ns)
    engine = SyntheticDenoiser(DenoiserParams(step_ns=200_000, pixel_ns=0.0, encode_ns=2000))  # as it is measured
    own = warm_up_denoiser(engine, Probes(((shape, 1),), "png", is_own_work=True), START, clocks).cost
    assert step_ns(own, shape) == pytest.approx(100_000)
    assert encode_ns(own, shape) == pytest.approx(1000)
    staged = warm_up_denoiser(engine, Probes(((shape, 1),), "png"), START, clocks).cost
    assert step_ns(staged, shape) == pytest.approx(200_000)  # its thread waits for other processes: nobody can tell


class Compiling(SyntheticDenoiser):
    """Takes a second more for the first plan of each shape."""

    def __init__(self, params: DenoiserParams) -> None:
        super().__init__(params)
        self._seen: set[tuple[int, int]] = set()

    def run(self, plan: DenoisePlan) -> Denoised:
        done, sides = super().run(plan), (plan.height, plan.width)
        assert done.stages is not None
        more_ns = 0 if sides in self._seen else NS_PER_S
        self._seen.add(sides)
        stages = msgspec.structs.replace(done.stages, denoise_ns=done.stages.denoise_ns + more_ns)
        return msgspec.structs.replace(done, stages=stages)


# SPEC F6, F8
def test_what_a_first_run_takes_is_measured_apart_from_the_work() -> None:
    shape, params = DenoiseShape(64, 64, passes=1), DenoiserParams(step_ns=200_000, pixel_ns=0.0, encode_ns=2000)
    usual = warm_up_denoiser(SyntheticDenoiser(params), Probes(((shape, 2),), "png"), START)
    warm = warm_up_denoiser(Compiling(params), Probes(((shape, 2),), "png"), START)
    assert [one.first_ns for one in warm.shapes] == [NS_PER_S]
    assert warm.cost == usual.cost
    belief = DenoiseCost(warm.cost)
    belief.begin(warm.shapes)
    assert belief.coefficients.first_ns == NS_PER_S


class Counting(SyntheticDenoiser):
    """Holds 10 bytes per token of what it steps, and 3 per pixel of what it decodes."""

    tile_pixels = joined_tokens_max = None
    encodes_max, decodes_max, joined_pixels_max = 1, 1, 0

    def stage_bytes(self) -> int:
        return 0

    def device_memory(self) -> DeviceMemory | None:
        return DeviceMemory(1000, 100, 900)

    def run_counted(self, plan: DenoisePlan) -> tuple[Denoised, StagePeaks]:
        assert plan.shape is not None
        pictures = sum(row.pictures for row in plan.rows)
        tokens = tokens_of(START, plan.shape) * pictures
        peaks = StagePeaks(2 * tokens, 10 * tokens * plan.shape.passes, 3 * plan.shape.pixels * pictures)
        return self.run(plan), peaks


# SPEC F2, F4
def test_what_stages_hold_is_counted_while_it_warms_up() -> None:
    engine = Counting(DenoiserParams(step_ns=1))
    warm = warm_up_denoiser(engine, Probes(((SMALL, 4), (LARGE, 1)), "png"), START).within(5000, 4)
    memory, shape = warm.memory, DenoiseShape(96, 96, passes=2)
    assert memory is not None
    assert (memory.room, memory.pictures_max) == (5000, 4)
    assert step_bytes(memory, START, shape, 2) == pytest.approx(10 * 2 * 2 * tokens_of(START, shape), abs=2)
    assert decode_bytes(memory, shape, 2) == pytest.approx(3 * 2 * 96 * 96, abs=2)
    spec = ReplicaSpec(NodeId("r"), ModelId("m"), (), NodeId("c"), diffusion=DiffusionSpec())
    assert warmed(Recipe(spec, 0, None), warm).memory == memory


def test_an_engine_that_does_not_count_tells_no_memory() -> None:
    warm = warm_up_denoiser(SyntheticDenoiser(DenoiserParams(step_ns=1)), Probes(((SMALL, 1),), "png"), START)
    assert warm.within(5000, 4).memory is None


def test_the_room_of_an_engine_is_what_is_said_or_its_share_of_its_device() -> None:
    engine = Counting(DenoiserParams(step_ns=1))
    said = PipelineSpec("x", "cpu", "float32", 1, 64, None, memory_bytes=77)
    assert room_beside(said, engine) == 77
    shared = msgspec.structs.replace(said, memory_bytes=None, sharers=2)
    assert room_beside(shared, engine) == round(MEMORY_SHARE * 900 / 2)


class Encoding(SyntheticDenoiser):
    """Takes 5 ns for a pixel of a picture to begin from."""

    def run(self, plan: DenoisePlan) -> Denoised:
        done = super().run(plan)
        pixels = sum(new.request.shape.pixels for new in plan.new if new.request.content.pictures)
        assert done.stages is not None
        return msgspec.structs.replace(done, stages=msgspec.structs.replace(done.stages, vae_encode_ns=5 * pixels))


def test_a_picture_to_begin_from_is_encoded_once_to_know_what_that_takes() -> None:  # SPEC F1, F2
    engine, shape = Encoding(DenoiserParams(step_ns=1)), DenoiseShape(64, 64, passes=1)
    assert warm_up_denoiser(engine, Probes(((shape, 1),), "png"), START).cost.begin_ns == 0.0
    assert warm_up_denoiser(engine, Probes(((shape, 1),), "png", edits=True), START).cost.begin_ns == 5.0
    assert engine.held == 0


class Looking(SyntheticDenoiser):
    """Takes 1000 ns for pictures beside the words, and then a quarter more of every step."""

    def run(self, plan: DenoisePlan) -> Denoised:
        done = super().run(plan)
        count, steps = sum(new.request.image_prompts for new in plan.new), sum(row.count for row in plan.rows)
        took = {
            "text_encode_ns": 100 + 1000 * count,
            "image_encode_ns": 1000 * count,
            "denoise_ns": steps * (400 + 100 * count),
        }
        assert done.stages is not None
        return msgspec.structs.replace(done, stages=msgspec.structs.replace(done.stages, **took))


# SPEC F2
def test_a_picture_beside_the_words_is_encoded_once_to_know_what_that_takes() -> None:
    engine, shape = Looking(DenoiserParams(step_ns=1)), DenoiseShape(64, 64, passes=1)
    without = warm_up_denoiser(engine, Probes(((shape, 1),), "png"), START).cost
    cost = warm_up_denoiser(engine, Probes(((shape, 1),), "png", image_prompts=True), START).cost
    assert (without.image_prompt_ns, without.image_prompt_share) == (0.0, 0.0)
    assert (cost.image_prompt_ns, cost.image_prompt_share) == (pytest.approx(1000), pytest.approx(0.25))
    assert engine.held == 0


def test_a_model_that_refuses_pictures_beside_the_words_is_not_ready() -> None:  # it was given an adapter for them
    class Blind(SyntheticDenoiser):
        def run(self, plan: DenoisePlan) -> Denoised:
            done = super().run(plan)
            shown = [new.seq for new in plan.new if new.request.content.image_prompts]
            failed = tuple(RowFailed(seq, "bad_input", "it takes no image prompt") for seq in shown)
            return msgspec.structs.replace(done, failed=failed)

    with pytest.raises(EngineError, match="it takes no image prompt"):
        warm_up_denoiser(Blind(DenoiserParams(step_ns=1)), Probes(((SMALL, 1),), "png", image_prompts=True), START)


def test_a_model_that_takes_no_pictures_after_all_is_ready_without() -> None:
    class Refusing(SyntheticDenoiser):
        def run(self, plan: DenoisePlan) -> Denoised:
            done = super().run(plan)
            edits = [new.seq for new in plan.new if new.request.content.pictures]
            failed = tuple(RowFailed(seq, "bad_input", "it takes no pictures") for seq in edits)
            return msgspec.structs.replace(done, failed=failed)

    warm = warm_up_denoiser(Refusing(DenoiserParams(step_ns=1)), Probes(((SMALL, 1),), "png", edits=True), START)
    assert warm.cost.begin_ns == 0.0


# SPEC F4, F8
def test_a_batch_that_is_predicted_not_to_fit_is_not_run() -> None:
    class Watching(Counting, Watched):
        pass

    engine = Watching(DenoiserParams(step_ns=1))
    tokens = tokens_of(START, SMALL)
    each = 2 * tokens + max(10 * tokens * 2, 3 * SMALL.pixels)
    warm = warm_up_denoiser(engine, Probes(((SMALL, 8),), "png"), START, room=3 * each + 100)
    assert (warm.caps, engine.ran) == (((SMALL, 3),), {(64, 64): {1, 2, 3}})


def test_what_is_warm_is_told_for_people_and_for_the_machine() -> None:  # SPEC F8
    probes = Probes(((SMALL, 4), (DenoiseShape(96, 64, 9), 1)), "png")
    warm = warm_up_denoiser(SyntheticDenoiser(DenoiserParams(step_ns=1)), probes, START)
    assert warm.words == "warm: 64x64 up to 4; 64x96, 9 frames up to 1; this device has no memory pool to fill first"
    spec = ReplicaSpec(NodeId("r"), ModelId("m"), (), NodeId("c"), diffusion=DiffusionSpec())
    assert warmed(Recipe(spec, 0, None), warm).warm == (
        WarmShape(64, 64, 1, 4, first_ns=0),
        WarmShape(96, 64, 9, 1, first_ns=0),
    )


class Staged(Counting):
    """Its stages have processes that hold 150 bytes."""

    decodes_max, encodes_max, joined_pixels_max = 3, 2, 0

    def stage_bytes(self) -> int:
        return 150

    def run_counted(self, plan: DenoisePlan) -> tuple[Denoised, StagePeaks]:
        done, peaks = super().run_counted(plan)
        pixels = sum(new.request.shape.pixels for new in plan.new if new.request.content.pictures)
        return done, msgspec.structs.replace(peaks, begin_bytes=11 + 5 * pixels)


class Crowded(Staged):
    """On a device of which others have most."""

    def device_memory(self) -> DeviceMemory | None:
        return DeviceMemory(1000, 100, 300)


# SPEC G1
def test_what_processes_of_stages_hold_is_no_room_for_work() -> None:
    shared = PipelineSpec("x", "cpu", "float32", 1, 64, None, sharers=2)
    assert room_beside(shared, Counting(DenoiserParams())) == round(MEMORY_SHARE * 900 / 2)
    assert room_beside(shared, Crowded(DenoiserParams())) == round(MEMORY_SHARE * 1000 / 2) - 100 - 150


# SPEC F1
def test_what_encodes_a_picture_to_begin_from_is_counted() -> None:
    memory = warm_up_denoiser(Staged(DenoiserParams(step_ns=1)), Probes(((SMALL, 1),), "png", edits=True), START).memory
    assert memory is not None
    assert (memory.begin_base, memory.begin_pixel) == (11.0, 5.0)
    assert (memory.decodes_max, memory.encodes_max) == (3, 2)


class Sorted(SyntheticDenoiser):
    """Notes the requests of every batch, and the edits, by width."""

    def __init__(self, params: DenoiserParams) -> None:
        super().__init__(params)
        self.together, self.edited = set[tuple[int, int]](), list[int]()

    def run(self, plan: DenoisePlan) -> Denoised:
        self.together.add((plan.width, len(plan.rows)))
        self.edited += [new.request.width for new in plan.new if new.request.content.pictures]
        return super().run(plan)


# SPEC F8
def test_the_usual_shape_in_batches_of_several_requests_and_an_edit_of_every_shape_have_run() -> None:
    engine = Sorted(DenoiserParams(step_ns=1))
    probes = Probes(((SMALL, 3), (LARGE, 4), (DenoiseShape(64, 96), 1)), "png", edits=True)
    warm_up_denoiser(engine, probes, START)
    assert engine.together == {(64, 1), (64, 2), (64, 3), (128, 1), (96, 1)}
    assert (set(engine.edited), engine.edited.count(128), engine.edited.count(96)) == ({64, 128, 96}, 1, 1)
    unasked = Sorted(DenoiserParams(step_ns=1))
    warm_up_denoiser(unasked, msgspec.structs.replace(probes, edits=False), START)
    assert unasked.edited == []


# SPEC F8
def test_a_shape_whose_edit_fails_is_served_without(caplog: pytest.LogCaptureFixture) -> None:
    class Narrow(Sorted):
        def run(self, plan: DenoisePlan) -> Denoised:
            done = super().run(plan)
            too_large = [new.seq for new in plan.new if new.request.content.pictures and plan.width == 128]
            failed = tuple(RowFailed(seq, "out_of_memory", "no room") for seq in too_large)
            return msgspec.structs.replace(done, failed=done.failed + failed)

    probes = Probes(((SMALL, 1), (LARGE, 1), (DenoiseShape(64, 96), 1)), "png", edits=True)
    engine = Narrow(DenoiserParams(step_ns=1))
    warm = warm_up_denoiser(engine, probes, START)
    assert [shape.width for shape in warm.shapes] == [64, 128, 96]
    assert "128x128, 1 frame(s), 1 of them failed: no room; no edit of that size has run" in caplog.text
    assert engine.edited[-1] == 96
