"""Order policies of the diffusion machine."""

import pickle
from random import Random

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DiffusionRequest, Slo
from headway.cost.diffusion_belief import DenoiseCost
from headway.sched.diffusion.params import DiffusionParams, order_policy
from headway.sched.diffusion.protocols import Item, batch_key
from headway.sched.diffusion.queue import WaitingLine
from headway.sched.registry import PolicyChoice

MS = 1_000_000
BELIEF = DenoiseCost(DenoiseCoefficients(1e6, 0.0, 100.0, 0.01, decode_ns=1.0))


def some_item(number: int, rng: Random) -> Item:
    """An item as the machine would make it."""
    request = DiffusionRequest(
        RequestId(f"req-{number}"),
        TenantId(f"t{rng.randint(0, 2)}"),
        ModelId("m"),
        rng.choice([4, 28]),
        rng.choice([64, 512]),
        512,
        number,
        rng.randint(0, 20) * MS,
        slo=Slo(e2e_deadline_ns=rng.choice([None, rng.randint(20, 90) * MS])),
        frames=rng.choice([1, 81]),
    )
    return Item(number, request, batch_key(request), BELIEF.left_ns(request))


class OrderScene:
    """Some wait."""

    def __init__(self, name: str, rng: Random, shuffle: int) -> None:
        self.policy = order_policy(DiffusionParams(order=PolicyChoice(name)), BELIEF)
        self.items = [some_item(number, rng) for number in range(1, rng.randint(2, 30))]
        order = list(self.items)
        Random(shuffle).shuffle(order)
        self.line = WaitingLine(self.policy)
        for item in order:
            self.line.add(item)

    def query(self) -> object:
        """The whole order, with ranks."""
        return [(item.seq, rank) for rank, item in self.line.first(len(self.items))]

    def allowed(self, answer: object) -> bool:
        """Everybody once, ranks unique and rising."""
        assert isinstance(answer, list)
        ranks = [rank for _seq, rank in answer]
        return sorted(seq for seq, _rank in answer) == [item.seq for item in self.items] and ranks == sorted(set(ranks))

    def state(self) -> bytes:
        """Pickled."""
        return pickle.dumps(vars(self.policy))

    def conserves(self) -> None:
        """Everybody leaves once, and only once."""
        for item in self.items:
            assert self.line.remove(item)
            assert not self.line.remove(item)
            assert self.line.check()
        assert len(self.line) == self.line.work_ns == 0


def scene(name: str, rng: Random, shuffle: int = 0) -> OrderScene:
    """A queue."""
    return OrderScene(name, rng, shuffle)
