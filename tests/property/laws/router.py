"""Routing policies."""

import pickle
from random import Random

from tests.property.llm_world import make_request
from tests.unit.sched.router.views import View

from headway.core.ids import NodeId
from headway.core.request import LlmRequest
from headway.sched.policies import routing_policy
from headway.sched.registry import PolicyChoice
from headway.sched.router.protocol import Dispatched


class RouterScene:
    """A fleet and some requests."""

    def __init__(self, name: str, rng: Random, shuffle: int) -> None:
        self.policy = routing_policy(PolicyChoice(name))
        self.fleet = [
            View(NodeId(f"rep-{i}"), rng.randint(0, 4), rng.randint(0, 300), rng.randint(0, 300), rng.randint(0, 99))
            for i in range(rng.randint(1, 7))
        ]
        Random(shuffle).shuffle(self.fleet)
        self.requests: list[LlmRequest] = [make_request(number, (1, 2, 3)) for number in range(5)]
        self.policy.observe(Dispatched(0, make_request(0, (1, 2, 3)), NodeId("rep-0")))

    def query(self) -> object:
        """Ranks for every request."""
        return [[(s.replica, s.score) for s in self.policy.rank(r, self.fleet, 5)] for r in self.requests]

    def allowed(self, answer: object) -> bool:
        """Replicas of the fleet, each once, at least one."""
        assert isinstance(answer, list)
        ids = {view.id for view in self.fleet}
        names = [[replica for replica, _score in ranked] for ranked in answer]
        return all(ranked and len(set(ranked)) == len(ranked) and set(ranked) <= ids for ranked in names)

    def state(self) -> bytes:
        """Pickled."""
        return pickle.dumps(vars(self.policy))

    def conserves(self) -> None:
        """Every request finds a replica, dispatch after dispatch."""
        for request in self.requests * 4:
            best = self.policy.rank(request, self.fleet, 5)[0]
            self.policy.observe(Dispatched(5, request, best.replica))


def scene(name: str, rng: Random, shuffle: int = 0) -> RouterScene:
    """A fleet."""
    return RouterScene(name, rng, shuffle)
