"""What a FrontNode's gate says of requests, and what the front makes of it."""

import msgspec
from tests.unit.sched.desk import Desk
from tests.unit.sched.router.views import llm

from headway.core.decisions import Decision
from headway.core.effects import Admitted, Record
from headway.core.ids import ModelId
from headway.core.messages import Submit
from headway.core.request import FinishReason, LlmRequest, SamplingParams, Slo
from headway.core.units import NS_PER_MS, ns_from_ms
from headway.sched.config import RouteConfig
from headway.sched.nodes import FrontConfig
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import Room

PREDICTIVE = PolicyChoice("predictive", {"shadow_share": 0.0})
BUSY = {
    "running": 4,
    "waiting": 1,
    "waiting_prefill_tokens": 500,
    "prefill_tokens_per_s": 1000.0,
    "step_ns": 10 * NS_PER_MS,
}
IN_TIME = Slo(ttft_deadline_ns=ns_from_ms(300))  # the busy replica needs 500 ms for what waits there


def desk(*replicas: str, route: RouteConfig | None = None) -> Desk:
    """Replicas that are busy with 500 ms of prompts."""
    made = Desk(
        FrontConfig(
            admission=PREDICTIVE,
            routes={"synthetic": route or RouteConfig()},
            room=Room(engine_queue_ms=50.0, cold_requests=2),
        ),
        replicas,
    )
    for replica in replicas:
        made.report(replica, **BUSY)
    return made


def verdict(made: Desk, request: LlmRequest) -> tuple[str, str | None]:
    found = made.node.dispatch.gate.judge(request, 0).verdict
    return found.kind, found.to


def decisions(made: Desk, kind: str) -> list[str]:
    records = [effect.entry for effect in made.last if isinstance(effect, Record)]
    return [entry.chosen for entry in records if isinstance(entry, Decision) and entry.kind == kind]


def test_what_a_model_refuses_is_transferred_where_the_operator_says() -> None:  # SPEC A7
    made = desk("rep-a", route=RouteConfig(transfers_to=("absent", "spare")))
    made.join("rep-b")
    made.report("rep-b", model="spare")
    assert verdict(made, llm("req-1")) == ("queue", None)
    made.arrive(llm("req-1", slo=IN_TIME))
    (end,) = made.ends()
    assert end.error is not None
    assert (end.reason, end.transfer_to, end.error.code) == (FinishReason.REJECTED, "spare", "slo_unattainable")
    assert decisions(made, "admit") == ["transfer"]
    (record,) = [e.entry for e in made.close("req-1") if isinstance(e, Record)]
    assert not isinstance(record, Decision)
    assert record.outcome == "transferred"


def test_a_smaller_model_is_for_those_who_allow_it() -> None:  # SPEC A7
    made = desk("rep-a", route=RouteConfig(fallbacks=("small",)))
    made.join("rep-b")
    made.report("rep-b", model="small")
    late = llm("req-1", slo=IN_TIME)
    assert verdict(made, late) == ("reject", None)
    assert verdict(made, msgspec.structs.replace(late, allow_degrade=("model",))) == ("degrade", "small")


def test_nobody_is_sent_where_it_would_be_late_too() -> None:  # SPEC A7
    made = desk("rep-a", route=RouteConfig(transfers_to=("spare",)))
    made.join("rep-b")
    made.report("rep-b", **BUSY, model="spare")
    assert verdict(made, llm("req-1", slo=IN_TIME)) == ("reject", None)


def test_a_transfer_may_go_to_a_relayed_model() -> None:  # SPEC A7
    made = desk("rep-a", route=RouteConfig(transfers_to=("spare",)))
    made.join("rep-b")
    made.report("rep-b", model="spare", role="upstream")
    assert verdict(made, llm("req-1", slo=IN_TIME)) == ("transfer", "spare")


def test_a_degraded_request_runs_with_fewer_tokens_and_its_client_is_told() -> None:  # SPEC A7
    made = desk("rep-a")
    sampling = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
    slo = Slo(e2e_deadline_ns=ns_from_ms(1510))
    made.arrive(llm("req-1", slo=slo, sampling=sampling, allow_degrade=("max_tokens",)))
    assert decisions(made, "admit") == ["degrade"]
    (told,) = [effect for effect in made.last if isinstance(effect, Admitted)]
    assert told.degraded == (("max_tokens", 101),)  # 510 ms to the first token, then 10 ms each
    made.report("rep-a", step_ns=10 * NS_PER_MS)
    ((_, submit),) = made.sent(Submit)
    assert isinstance(submit.request, LlmRequest)
    assert submit.request.max_tokens == 101


def test_a_long_wait_asks_for_more_replicas() -> None:  # SPEC A7, A12
    made = desk("rep-a")
    made.arrive(llm("req-1", slo=Slo(ttft_deadline_ns=ns_from_ms(900))))
    assert decisions(made, "scale") == ["scale_out"]
    made.arrive(llm("req-2", slo=Slo(ttft_deadline_ns=ns_from_ms(900))))
    assert decisions(made, "scale") == []  # at most once per interval


def test_a_front_without_room_counts_as_a_verdict() -> None:  # SPEC A7, L-3
    made = Desk(FrontConfig(in_flight_max=1))
    made.arrive("req-1")
    made.arrive("req-2")
    assert decisions(made, "admit") == ["reject"]


def test_a_model_may_have_a_policy_of_its_own() -> None:  # SPEC A1, A7
    made = desk("rep-a", route=RouteConfig(admission=PolicyChoice("open")))
    assert verdict(made, llm("req-1", slo=IN_TIME))[0] in ("admit", "queue")
    other = llm("req-2", slo=IN_TIME, model=ModelId("spare"))
    made.join("rep-b")
    made.report("rep-b", **BUSY, model="spare")
    assert verdict(made, other) == ("reject", None)


def test_figures_come_from_every_policy() -> None:  # SPEC A7
    made = desk("rep-a")
    made.arrive(llm("req-1", slo=Slo(ttft_deadline_ns=ns_from_ms(900))))
    made.report("rep-a")
    made.tokens("rep-a", "req-1", 1, 0, 7)
    (figures,) = made.node.dispatch.gate.figures()
    assert figures.model == "synthetic"
    assert dict(figures.coverage)["ttft"] == 1.0
