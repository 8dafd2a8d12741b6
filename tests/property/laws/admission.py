"""Admission policies."""

import pickle
from random import Random

import msgspec
from tests.property.llm_world import make_request

from headway.core.decisions import Candidate
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import DiffusionRequest, LlmRequest, Slo
from headway.sched.admission.protocol import Began, Considered, Load, Outlook, Over
from headway.sched.policies import admission_policy
from headway.sched.registry import PolicyChoice

MS = 1_000_000


def asked(request: LlmRequest | DiffusionRequest, what: str) -> int:
    """What a request wants of something."""
    if isinstance(request, DiffusionRequest):
        assert what == "steps"
        return request.steps
    assert what == "max_tokens"
    return request.max_tokens


class AdmissionScene:
    """A request, its candidates best first (their order is the router's answer, not chance), and the front's load."""

    def __init__(self, name: str, rng: Random) -> None:
        self.policy = admission_policy(PolicyChoice(name))
        self.cases = []
        for number in range(6):
            best = sorted(rng.random() for _ in range(rng.randint(0, 4)))
            candidates = [Candidate(f"rep-{i}", s, rng.random()) for i, s in enumerate(best)]
            outlook = Outlook(rng.random() / 20, rng.choice([0.0, rng.random()]), rng.random(), 3, rng.random() < 0.2)
            load = Load(
                rng.choice([0, 3, 5000]),
                rng.random() < 0.5,
                rng.random(),
                rng.random(),
                0.01,
                rng.randint(1, 40),
                outlook,
                rng.random() / 20,
            )
            slo = Slo(*(rng.choice([None, rng.randint(0, 500) * MS]) for _ in range(3)))
            request: LlmRequest | DiffusionRequest = make_request(number, (1,), slo=slo)
            if rng.random() < 0.5:
                name, steps = RequestId(f"pic-{number}"), rng.randint(1, 60)
                request = DiffusionRequest(name, TenantId("t"), ModelId("m"), steps, 64, 64, number, 0, slo=slo)
            allowed = rng.choice([(), ("max_tokens", "steps")])
            self.cases.append((msgspec.structs.replace(request, allow_degrade=allowed), candidates, load))
        for number in range(rng.choice([0, 60])):  # a policy that has learned something
            self.live(make_request(100 + number, (1,)), rng)

    def live(self, request: LlmRequest, rng: Random) -> None:
        """One request from its verdict to its end."""
        verdict = self.policy.decide(request, [Candidate("rep-0", 0.1, 1.0)], Load(0, True, 0.1, 0.0, 0.05, 9), 0)
        self.policy.observe(Considered(0, request, verdict))
        if verdict.error is None:
            first_ns = rng.randint(1, 400) * MS
            self.policy.observe(Began(first_ns, request.id))
            self.policy.observe(Over(first_ns + 90 * MS, request.id, 9, rng.choice(["done", "late", "lost"])))

    def query(self) -> object:
        """A verdict per case."""
        return [self.policy.decide(request, candidates, load, 100) for request, candidates, load in self.cases]

    def allowed(self, answer: object) -> bool:
        """A known verdict with a reason; a rejection says what the client is told, and nothing else does."""
        assert isinstance(answer, list)
        return all(
            v.kind in ("admit", "queue", "reject", "degrade")
            and v.reason
            and (v.error is not None) == (v.kind == "reject")
            and bool(v.left) == (v.kind == "degrade")
            and all(what in case[0].allow_degrade and value < asked(case[0], what) for what, value in v.left)
            for v, case in zip(answer, self.cases, strict=True)
        )

    def state(self) -> bytes:
        """Pickled."""
        return pickle.dumps(vars(self.policy))

    def conserves(self) -> None:
        """Every case gets exactly one verdict, and nothing of a request is remembered after its end but figures."""
        answer = self.query()
        assert isinstance(answer, list)
        assert len(answer) == len(self.cases)
        for number in range(20):
            before = len(pickle.dumps(vars(self.policy)))
            request = make_request(500 + number, (1,))
            self.policy.observe(Considered(0, request, answer[number % len(answer)]))
            self.policy.observe(Over(1, request.id, 0, "lost"))
            assert abs(len(pickle.dumps(vars(self.policy))) - before) < 100


def scene(name: str, rng: Random, shuffle: int = 0) -> AdmissionScene:
    """Some arrivals."""
    return AdmissionScene(name, rng)
