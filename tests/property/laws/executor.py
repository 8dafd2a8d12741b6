"""Pacing policies: when the next step is planned."""

import pickle
from random import Random

from headway.sched.executor.protocol import InFlight
from headway.sched.policies import pace_policy
from headway.sched.registry import PolicyChoice

MS = 1_000_000


class PaceScene:
    """Moments at which a credit is free."""

    def __init__(self, name: str, rng: Random) -> None:
        self.policy = pace_policy(PolicyChoice(name))
        self.moments = []
        for _ in range(8):
            now, steps = rng.randint(50, 100) * MS, rng.randint(0, 3)
            planned = rng.randint(0, 50) * MS if steps else None
            done = rng.choice([None, rng.randint(0, 50) * MS])
            self.moments.append((now, InFlight(steps, planned, done, rng.randint(0, 30) * MS, rng.randint(0, 2) * MS)))

    def query(self) -> object:
        """When, per moment."""
        return [self.policy.plan_at(now, flight) for now, flight in self.moments]

    def allowed(self, answer: object) -> bool:
        """An idle device is never made to wait, and a wait ends by the time the open steps do."""
        assert isinstance(answer, list)
        for when, (now, flight) in zip(answer, self.moments, strict=True):
            if flight.steps == 0 and when > now:
                return False
            if when > now + flight.steps * flight.step_ns:
                return False
        return True

    def state(self) -> bytes:
        """Pickled."""
        return pickle.dumps(vars(self.policy))

    def conserves(self) -> None:
        """A plan made when the policy says is due then."""
        for now, flight in self.moments:
            when = self.policy.plan_at(now, flight)
            assert self.policy.plan_at(max(now, when), flight) <= max(now, when)


def scene(name: str, rng: Random, shuffle: int = 0) -> PaceScene:
    """Some moments."""
    return PaceScene(name, rng)
