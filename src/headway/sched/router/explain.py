"""What the router sees of every replica for one request, and why it would choose as it does. Changes nothing."""

from collections.abc import Mapping

from headway.core.decisions import Candidate, Explained
from headway.core.ids import NodeId
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns, s_from_ns
from headway.sched.router.fleet_view import Replica, expected_output
from headway.sched.router.machine import Router
from headway.sched.router.protocol import Explaining
from headway.sched.router.roles import role_of
from headway.sched.router.work import kind_of, lacking


def explain(router: Router, request: Request, at_ns: Ns) -> tuple[Explained, ...]:
    """Return the candidates, best first, then every other replica with the reason why it is none."""
    candidates = router.forecast(request, at_ns)
    policy = router.choices.of(request.model)
    parts: Mapping[NodeId, Mapping[str, float]] = {}
    if isinstance(policy, Explaining) and candidates:
        seen = [router.replicas[NodeId(candidate.replica)] for candidate in candidates]  # as the forecast left them
        parts = policy.explain(request, seen, at_ns)
    shown = []
    for place, candidate in enumerate(candidates):
        node = NodeId(candidate.replica)
        shown.append(_candidate(router, candidate, place, parts.get(node, {})))
    chosen = {candidate.replica for candidate in candidates}
    for node in sorted(router.replicas):
        if node not in chosen:
            replica = router.replicas[node]
            replica.look(at_ns)
            shown.append(_seen(replica, None, _why_not(router, replica, request, at_ns)))
    return tuple(shown)


def output_tokens(request: Request) -> int:
    """Return the output tokens, or denoise steps, that the router plans with."""
    return request.steps if isinstance(request, DiffusionRequest) else expected_output(request)


def _candidate(router: Router, candidate: Candidate, place: int, parts: Mapping[str, float]) -> Explained:
    replica = router.replicas[NodeId(candidate.replica)]
    reason = candidate.reason if candidate.decode is None else f"hands over to {candidate.decode}"
    return _seen(replica, place, reason, candidate, dict(parts), has_room=router.has_room(candidate))


def _seen(
    replica: Replica,
    place: int | None,
    reason: str,
    candidate: Candidate | None = None,
    parts: dict[str, float] | None = None,
    *,
    has_room: bool = False,
) -> Explained:
    return Explained(
        replica=replica.id,
        place=place,
        reason=reason,
        score=None if candidate is None else candidate.score,
        ttft_s=None if candidate is None or not candidate.confidence else candidate.seconds,
        confidence=0.0 if candidate is None else candidate.confidence,
        parts=parts or {},
        hit_tokens=0 if candidate is None else candidate.hit_tokens or 0,
        has_room=has_room,
        requests=replica.requests,
        queued_tokens=replica.queued_tokens,
        queued_tokens_spread=replica.queued_tokens_spread,
        kv_usage=replica.kv_usage,
        prefill_tokens_per_s=replica.prefill_tokens_per_s,
        age_s=s_from_ns(replica.age_ns),
        source=replica.source,
    )


def _why_not(router: Router, replica: Replica, request: Request, at_ns: Ns) -> str:
    report = replica.report
    if report is None:
        return "it has not reported yet"
    if report.role != role_of(request) or request.model not in (report.model, *report.models):
        return f"it serves {report.model} as {report.role}"
    if replica.is_draining:
        return "it is draining"
    if not replica.takes(request, kind_of(request)):
        if isinstance(request, DiffusionRequest) and (why := lacking(report, request)) is not None:
            return why
        least, most = report.pixels
        return f"its pool takes requests of {least} to {'any number of' if most is None else most} pixels"
    if router.guard is not None and not router.guard.is_usable(replica.id, at_ns):
        return "its health or its breaker keeps it out"
    return "the policy leaves it out, or it is in another pool"
