from tests.unit.sched.router.views import llm

from headway.core.decisions import Candidate
from headway.core.request import Slo
from headway.sched.admission.policies.open import Open
from headway.sched.admission.protocol import Load

POLICY = Open(Open.Params())


def test_refuses_nobody_whatever_waits_and_whatever_was_promised() -> None:  # SPEC A7
    hopeless = llm("req-1", slo=Slo(ttft_deadline_ns=1, e2e_deadline_ns=2))
    slow = Candidate("rep-a", seconds=60.0, confidence=1.0)
    assert POLICY.decide(hopeless, [slow], Load(100_000, False, 9.0, 60.0), 0).kind == "queue"
    assert POLICY.decide(hopeless, [slow], Load(0, True, 9.0, 60.0), 0).kind == "admit"
