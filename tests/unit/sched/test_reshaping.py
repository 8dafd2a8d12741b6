from collections.abc import Sequence

from tests.unit.sched.diffusion.pictures import COST, picture

from headway.core.artifacts import RowFailed
from headway.core.effects import Effect, RunDenoise, Send
from headway.core.events import DenoiseDone, MessageArrived, PeerJoined, StepFailed
from headway.core.ids import NodeId
from headway.core.messages import Accepted, Drain, Message, Prepare, Refused, Report, Reshape, Reshaped, Submit, Undrain
from headway.core.plans import DenoisePlan, StepTiming
from headway.core.reports import PreparationFailure, WarmShape
from headway.core.request import DenoiseShape
from headway.core.units import NS_PER_S
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.machine import DiffusionMachine
from headway.sched.diffusion.params import DiffusionParams
from headway.sched.diffusion.unprepared import ERROR_CHARS_MAX, FAILURES_MAX, Unprepared
from headway.sched.diffusion.warming import Stock
from headway.sched.diffusion.warmth import Warmth
from headway.sched.nodes import DiffusionNode, Membership, WorkerConfig

FRONT, CONTROL = NodeId("front-0"), NodeId("control-0")
SMALL, LARGE, WIDE = DenoiseShape(64, 64), DenoiseShape(128, 128), DenoiseShape(128, 256)
SPLIT = 64 * 64


class Easel:
    """A diffusion replica for small pictures, that may be asked to take large ones."""

    def __init__(
        self,
        shapes: Sequence[DenoiseShape] = (SMALL, LARGE, WIDE),
        fit: int | None = None,
        warmth: Warmth | None = None,
    ) -> None:
        params = DiffusionParams(pixels_max=SPLIT, steps_per_plan=3, gain_min=1.0)
        self.machine = DiffusionMachine(params, DenoiseCost(COST), warmth=warmth)
        member = Membership(NodeId("rep"), 1, (FRONT, CONTROL))
        self.node = DiffusionNode(member, self.machine, "m", WorkerConfig(), Stock(tuple(shapes), pixels_fit=fit))
        self.reshaping = self.node.worker.reshaping
        self.at_ns = 0
        self.plans: list[DenoisePlan] = []
        self._fold(self.node.handle(PeerJoined(0, "t", FRONT, 1)))

    def _fold(self, effects: list[Effect]) -> list[Message]:
        self.node.check_invariants()
        self.plans += [effect.plan for effect in effects if isinstance(effect, RunDenoise)]
        return [effect.message for effect in effects if isinstance(effect, Send)]

    def hear(self, src: NodeId, message: Message) -> list[Message]:
        self.at_ns += NS_PER_S
        return self._fold(self.node.handle(MessageArrived(self.at_ns, "t", src, message)))

    def submit(self, name: str, size: int) -> list[Message]:
        said = self.hear(FRONT, Submit(picture(name, size=size), 1))
        return [one for one in said if isinstance(one, Accepted | Refused)]

    def reshape(self, number: int = 1, most: int | None = None) -> list[Message]:
        return self.hear(CONTROL, Reshape(number, SPLIT + 1, most, 5 * NS_PER_S))

    def done(self, failed: tuple[RowFailed, ...] = ()) -> list[Message]:
        plan = self.plans.pop(0)
        self.at_ns += NS_PER_S
        timing = StepTiming(self.at_ns, self.at_ns, self.at_ns)
        return self._fold(self.node.handle(DenoiseDone(self.at_ns, "t", plan.step, timing, failed=failed)))


def told(messages: list[Message]) -> list[Reshaped]:
    return [message for message in messages if isinstance(message, Reshaped)]


def test_an_idle_replica_prepares_every_shape_of_the_other_pool_and_then_takes_it() -> None:  # SPEC F5, F8
    easel = Easel()
    easel.reshape()
    assert [plan.shape for plan in easel.plans] == [LARGE]
    assert easel.machine.pixels == (0, SPLIT)
    assert not told(easel.done())
    assert [plan.shape for plan in easel.plans] == [WIDE]
    assert told(easel.done()) == [Reshaped(1, SPLIT + 1, None, 2 * NS_PER_S, 2)]
    assert easel.machine.pixels == (SPLIT + 1, None)
    assert easel.submit("r", 128) == [Accepted("r", 1)]
    assert easel.plans[0].step > 0
    assert isinstance(easel.submit("s", 64)[0], Refused)


def prepares(plan: DenoisePlan) -> bool:
    return plan.rows[0].seq < 0


def sizes(plans: list[DenoisePlan]) -> list[tuple[DenoiseShape | None, int]]:
    return [(plan.shape, sum(row.pictures for row in plan.rows)) for plan in plans]


def each(*batches: tuple[DenoiseShape, int]) -> list[tuple[DenoiseShape, int]]:
    """Two slices of each."""
    return [batch for batch in batches for _ in range(2)]


# SPEC F5, F8
def test_a_replica_that_has_moved_prepares_larger_batches() -> None:
    easel = Easel((SMALL, LARGE), warmth=Warmth(()))
    easel.reshape()
    assert told(easel.done())
    seen = []
    while easel.plans:
        assert prepares(easel.plans[0])
        seen += sizes(easel.plans)
        easel.done()
    assert seen == each((LARGE, 2), (LARGE, 3), (LARGE, 4))
    assert all(easel.machine.warmth.has_run(LARGE, pictures) for pictures in (1, 2, 3, 4))
    for name in "abcde":
        easel.submit(name, 128)
    easel.done()
    assert [len(plan.rows) for plan in easel.plans] == [4]  # and not 2


# SPEC F5, F8
def test_a_request_waits_for_one_slice_of_a_larger_batch_at_most() -> None:
    easel = Easel((SMALL, LARGE), warmth=Warmth(()))
    easel.reshape()
    easel.done()
    assert easel.submit("a", 128) == [Accepted("a", 1)]
    assert sizes(easel.plans) == [(LARGE, 2)]
    easel.done()
    assert not prepares(easel.plans[0])
    easel.done()
    assert sizes(easel.plans) == [(LARGE, 2)]  # it goes on when nobody waits any more


# SPEC F5
def test_a_larger_batch_that_fails_is_the_last_of_its_shape_and_a_move_waits_for_it() -> None:
    easel = Easel(warmth=Warmth(()))
    easel.reshape()
    easel.done()
    easel.done()
    assert sizes(easel.plans) == [(LARGE, 2)]
    easel.done((RowFailed(easel.plans[0].rows[0].seq, "out_of_memory", "none"),))
    assert sizes(easel.plans) == [(WIDE, 2)]
    easel.hear(CONTROL, Reshape(2, 0, SPLIT, 5 * NS_PER_S))
    assert len(easel.plans) == 1
    easel.done()
    easel.done()  # both slices
    assert easel.machine.pixels == (0, SPLIT)
    assert {plan.shape for plan in easel.plans} == {SMALL}  # nothing more of the other sizes


def test_what_waits_here_ends_before_anything_is_prepared() -> None:  # SPEC F5: no work is stranded
    easel = Easel()
    easel.submit("a", 64)
    easel.submit("b", 32)
    easel.reshape()
    ended = 0
    while easel.plans[0].step > 0:
        easel.done()
        ended += 1
    assert ended == 2
    assert [plan.shape for plan in easel.plans] == [LARGE]


def test_what_was_under_way_is_taken_until_the_preparation_begins_and_then_sent_back() -> None:
    easel = Easel()
    easel.submit("a", 64)
    easel.reshape()
    assert easel.submit("b", 64) == [Accepted("b", 1)]
    easel.done()
    easel.done()
    (said,) = easel.submit("c", 64)
    assert isinstance(said, Refused)
    assert said.code == "draining"  # the front sends it elsewhere


def test_while_it_moves_it_reports_that_it_drains() -> None:
    easel = Easel()
    reports = [one.report for one in easel.reshape() if isinstance(one, Report)]
    assert {report.draining for report in reports} == {True}
    easel.done()
    reports = [one.report for one in easel.done() if isinstance(one, Report)]
    assert {(report.draining, report.pixels) for report in reports} == {(False, (SPLIT + 1, None))}


def test_shapes_that_have_run_here_are_not_prepared_again() -> None:
    easel = Easel()
    easel.reshape()
    easel.done()
    easel.done()
    assert told(easel.hear(CONTROL, Reshape(2, 0, SPLIT, 0))) == [Reshaped(2, 0, SPLIT, 0, 0)]
    assert not easel.plans
    assert easel.submit("r", 64) == [Accepted("r", 1)]


def test_sizes_that_do_not_fit_are_not_tried() -> None:
    easel = Easel(fit=20_000)
    (answer,) = told(easel.reshape())
    assert answer.error == "requests of at most 20000 pixels fit in its memory"
    assert not easel.plans
    easel.reshape(2, most=20_000)
    assert [plan.shape for plan in easel.plans] == [LARGE]


def test_a_shape_that_fails_leaves_the_sizes_as_they_were() -> None:
    easel = Easel()
    easel.reshape()
    (answer,) = told(easel.done((RowFailed(-1, "out_of_memory", "no room"),)))
    assert answer.error == "no room"
    assert easel.machine.pixels == (0, SPLIT)
    assert easel.submit("a", 64) == [Accepted("a", 1)]


def test_an_engine_that_fails_meanwhile_leaves_the_sizes_as_they_were() -> None:
    easel = Easel()
    easel.reshape()
    plan = easel.plans.pop()
    (answer,) = told(easel._fold(easel.node.handle(StepFailed(9 * NS_PER_S, "t", plan.step, "gone"))))
    assert answer.error == "gone"
    assert easel.submit("a", 64) == [Accepted("a", 1)]


def test_a_second_move_waits_for_nobody() -> None:
    easel = Easel()
    easel.reshape()
    (answer,) = told(easel.reshape(2))
    assert answer.error == "it is changing its sizes already"


def test_after_a_move_what_others_should_take_goes_back_to_its_front() -> None:
    easel = Easel(shapes=())
    easel.reshape()
    (said,) = easel.submit("a", 64)  # its front has not heard yet
    assert isinstance(said, Refused)
    assert said.code == "draining"


def test_a_move_that_takes_no_time_is_reported_all_the_same() -> None:
    easel = Easel(shapes=())
    easel.submit("a", 64)
    easel.reshape()
    easel.done()
    reports = [one.report.pixels for one in easel.hear(CONTROL, Reshape(2, 0, SPLIT, 0)) if isinstance(one, Report)]
    assert reports
    assert set(reports) == {(0, SPLIT)}


# SPEC F8: a route asks for a shape to be warmed.
def asked(easel: Easel, *shapes: DenoiseShape) -> None:
    easel.hear(CONTROL, Prepare(shapes))


def small_only() -> Easel:
    easel = Easel(warmth=Warmth(()))
    easel.machine.take_pixels(0, None)
    return easel


def test_an_idle_replica_runs_what_an_operator_asks_for_in_batches_of_every_size() -> None:
    easel = small_only()
    asked(easel, LARGE)
    seen = []
    while easel.plans:
        assert prepares(easel.plans[0])
        seen += sizes(easel.plans)
        easel.done()
    assert seen == each((LARGE, 1), (LARGE, 2), (LARGE, 3), (LARGE, 4))
    assert easel.machine.warmth.told == (WarmShape(128, 128, 1, 4),)
    assert easel.machine.warmth.has_ended(LARGE)
    asked(easel, LARGE)  # it has run
    assert not easel.plans
    easel.submit("a", 128)
    assert not easel.plans[0].is_cold


def test_what_was_warm_before_a_restart_runs_up_to_the_batches_that_had_run() -> None:  # SPEC F8
    easel = small_only()
    easel.hear(CONTROL, Prepare((LARGE, SMALL), (2, 1)))
    seen = []
    while easel.plans:
        seen += sizes(easel.plans)
        easel.done()
    assert seen == each((LARGE, 1), (LARGE, 2), (SMALL, 1))


def reported(messages: list[Message]) -> list[tuple[PreparationFailure, ...]]:
    """Without what is said to another listener as well."""
    return [one.report.unprepared for one in messages if isinstance(one, Report)][::2]


# SPEC F8: whoever asked has no open request that could be told.
def test_what_an_operator_asked_for_and_failed_is_told_until_it_has_run() -> None:
    easel = small_only()
    asked(easel, LARGE)
    seq = easel.plans[0].rows[0].seq
    said = easel.done(failed=(RowFailed(seq, "out_of_memory", "no room for it"),))
    error = "no room for it; not run either: by 2, 3, 4"
    failure = PreparationFailure(128, 128, 1, 1, error, easel.at_ns)
    assert reported(said) == [(failure,)]
    (decision,) = [d for one in said if isinstance(one, Report) for d in one.decisions][::2]
    assert (decision.kind, decision.chosen, decision.reason) == ("prepare", "128x128 failed", error)
    asked(easel, LARGE)
    assert reported(easel.done()) == [(failure,)]
    assert reported(easel.done())[-1] == ()


def test_what_the_engine_lost_while_it_was_prepared_is_told_too() -> None:  # SPEC F8
    easel = small_only()
    asked(easel, LARGE)
    easel.at_ns += NS_PER_S
    plan = easel.plans.pop(0)
    said = easel._fold(easel.node.handle(StepFailed(easel.at_ns, "t", plan.step, "the device is gone")))
    assert reported(said) == [(PreparationFailure(128, 128, 1, 1, "the device is gone", easel.at_ns),)]


def test_failed_preparations_that_are_told_are_bounded() -> None:
    unprepared = Unprepared()
    for width in range(1, FAILURES_MAX + 3):
        unprepared.failed((DenoiseShape(64, width), 1))
        unprepared.because("x" * 1000)
        assert len(list(unprepared.take_decisions(width))) == 1
    told = unprepared.told(lambda _shape, _pictures: False)
    assert [one.width for one in told] == list(range(3, FAILURES_MAX + 3))
    assert len(told[0].error) == ERROR_CHARS_MAX


def test_what_an_operator_asks_for_goes_on_as_requests_come_and_go() -> None:
    easel = small_only()
    easel.machine.warmth.prepared(SMALL, 1)
    asked(easel, LARGE)
    seen = []
    for number in range(40):  # one is always there
        easel.submit(f"r{number}", 64)
        while easel.plans and (number == 39 or len(easel.machine._items) > 1 or prepares(easel.plans[0])):
            seen += ["slice" if prepares(easel.plans[0]) else "request"]
            easel.done()
    assert seen.count("slice") == 8
    assert "slice slice" not in " ".join(seen)
    assert not easel.machine.preparing.is_due


def test_what_a_replica_does_not_take_or_cannot_run_is_left_out() -> None:
    easel = Easel(warmth=Warmth(()))
    asked(easel, WIDE)  # of another pool
    assert not easel.plans
    easel.machine.take_pixels(0, None)
    asked(easel, LARGE)
    easel.done((RowFailed(easel.plans[0].rows[0].seq, "out_of_memory", "none"),))
    assert not easel.plans
    assert easel.machine.warmth.told == ()
    assert not easel.machine.preparing.is_due


def test_a_replica_that_drains_prepares_nothing() -> None:
    easel = small_only()
    easel.hear(CONTROL, Drain("an operator"))
    asked(easel, LARGE)
    assert not easel.plans
    easel.hear(CONTROL, Undrain("an operator"))
    assert sizes(easel.plans) == [(LARGE, 1)]
