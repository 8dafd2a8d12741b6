"""Routing policies: replicas in any state, and a history of everything that a router tells a policy."""

import pickle
from random import Random

from msgspec.structs import replace
from tests.unit.sched.router.rivals import asked, history, view

from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DiffusionRequest, LlmRequest, Request, TextRequest
from headway.core.units import NS_PER_S
from headway.sched.policies import routing_policy
from headway.sched.registry import PolicyChoice
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Left

NOW = 500 * NS_PER_S


def _text(request: LlmRequest, number: int) -> TextRequest:
    return TextRequest(
        RequestId(f"text-{number}"),
        request.tenant,
        request.model,
        request.prompt_tokens,
        20,
        0,
        block_hashes=request.block_hashes,
        block_tokens=request.block_tokens,
        lora="poet",
    )


class RouterScene:
    """A fleet and requests of all three kinds."""

    def __init__(self, name: str, rng: Random, shuffle: int) -> None:
        self.policy = routing_policy(PolicyChoice(name))
        tokens = [asked(rng, f"req-{number}") for number in range(4)]
        image = DiffusionRequest(RequestId("req-image"), TenantId("t"), ModelId("m"), 4, 8, 8, 1, 0)
        self.requests: list[Request] = [*tokens, _text(tokens[0], 0), image]
        longest = max(tokens, key=lambda request: request.prompt_tokens)
        self.fleet = [view(rng, f"rep-{place}", longest) for place in range(rng.randint(1, 7))]
        # Some tell what denoising costs them, with equal work now and then.
        told = DenoiseCoefficients(1e6, 0.0, 100.0, 0.01)
        self.fleet = [
            replace(seen, denoise_cost=told, work_ns=rng.choice((0, NS_PER_S))) if rng.random() < 0.5 else seen
            for seen in self.fleet
        ]
        Random(shuffle).shuffle(self.fleet)
        for event in history(f"{name}-{rng.random()}"):
            self.policy.observe(event)
        self.policy.observe(Dispatched(NOW, tokens[0], NodeId("rep-0"), 16))

    def query(self) -> object:
        """Ranks for every request."""
        return [[(s.replica, s.score, s.reason) for s in self.policy.rank(r, self.fleet, NOW)] for r in self.requests]

    def allowed(self, answer: object) -> bool:
        """Replicas of the fleet, each once, at least one."""
        assert isinstance(answer, list)
        assert all(self.policy.rank(request, [], NOW) == [] for request in self.requests)  # nobody serves its model
        ids = {view.id for view in self.fleet}
        names = [[item[0] for item in ranked] for ranked in answer]
        return all(ranked and len(set(ranked)) == len(ranked) and set(ranked) <= ids for ranked in names)

    def state(self) -> bytes:
        """Pickled."""
        return pickle.dumps(vars(self.policy))

    def conserves(self) -> None:
        """Every request finds a replica, whatever begins, ends or leaves in between."""
        for place, request in enumerate(self.requests * 4):
            best = self.policy.rank(request, self.fleet, NOW)[0].replica
            self.policy.observe(Dispatched(NOW + place, request, best))
            self.policy.observe(FirstToken(NOW + place, request.id, best, 5, None))
            if place % 5 == 4:
                self.policy.observe(Left(NOW + place, best))
            self.policy.observe(Ended(NOW + place, request.id, best, 3))
        assert all(self.policy.rank(request, self.fleet, NOW) for request in self.requests)


def scene(name: str, rng: Random, shuffle: int = 0) -> RouterScene:
    """A fleet."""
    return RouterScene(name, rng, shuffle)
