"""Admission policies."""

import pickle
from random import Random

from tests.property.llm_world import make_request

from headway.core.decisions import Candidate
from headway.core.request import Slo
from headway.sched.admission.protocol import Load
from headway.sched.policies import admission_policy
from headway.sched.registry import PolicyChoice

MS = 1_000_000


class AdmissionScene:
    """A request, its candidates best first (their order is the router's answer, not chance), and the front's load."""

    def __init__(self, name: str, rng: Random) -> None:
        self.policy = admission_policy(PolicyChoice(name))
        slo = Slo(ttft_deadline_ns=rng.choice([None, rng.randint(0, 500) * MS]))
        self.cases = []
        for number in range(6):
            best = sorted(rng.random() for _ in range(rng.randint(0, 4)))
            candidates = [Candidate(f"rep-{i}", s, rng.random()) for i, s in enumerate(best)]
            load = Load(rng.choice([0, 3, 5000]), rng.random() < 0.5, rng.random(), rng.random())
            self.cases.append((make_request(number, (1,), slo=slo), candidates, load))

    def query(self) -> object:
        """A verdict per case."""
        return [self.policy.decide(request, candidates, load, 100) for request, candidates, load in self.cases]

    def allowed(self, answer: object) -> bool:
        """A known verdict with a reason; a rejection says what the client is told, and nothing else does."""
        assert isinstance(answer, list)
        return all(
            v.kind in ("admit", "queue", "reject") and v.reason and (v.error is not None) == (v.kind == "reject")
            for v in answer
        )

    def state(self) -> bytes:
        """Pickled."""
        return pickle.dumps(vars(self.policy))

    def conserves(self) -> None:
        """Every case gets exactly one verdict."""
        answer = self.query()
        assert isinstance(answer, list)
        assert len(answer) == len(self.cases)


def scene(name: str, rng: Random, shuffle: int = 0) -> AdmissionScene:
    """Some arrivals."""
    return AdmissionScene(name, rng)
