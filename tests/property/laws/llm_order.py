"""Order policies of the LLM machine."""

import pickle
from random import Random

from tests.property.llm_world import make_request

from headway.core.request import Slo
from headway.cost.llm import StepCost, StepCostParams
from headway.sched.llm.params import ORDERS, LlmParams, provides
from headway.sched.llm.protocols import OrderPolicy
from headway.sched.llm.sequence import Seq, SeqState
from headway.sched.registry import PolicyChoice, select

MS = 1_000_000


class Context:
    """A belief, and prefix hits by request number."""

    def __init__(self) -> None:
        self.belief = StepCost(StepCostParams(learn=False))
        self.prefixes = self

    def hit_tokens(self, seq: Seq, step: int) -> int:
        """Some have long hits, some none."""
        return seq.id * 7 % 5 * 16


def some_seq(number: int, rng: Random) -> Seq:
    """A sequence as the machine would make it."""
    request = make_request(
        number,
        tuple(range(1, rng.randint(2, 90))),
        rng.randint(1, 50),
        arrived_ns=rng.randint(0, 40) * MS,
        urgency=rng.randint(0, 2),
        tenant=f"t{rng.randint(0, 3)}",
        weight=rng.choice([1, 2]),
        slo=Slo(ttft_deadline_ns=rng.choice([None, rng.randint(0, 90) * MS])),
        predicted=rng.choice([None, 3, 30]),
    )
    seq = Seq(number, request, 50, 9, b"")
    seq.preemptions = rng.choice([0, 0, 0, 1])
    return seq


class OrderScene:
    """Some wait, some run."""

    def __init__(self, name: str, rng: Random, shuffle: int) -> None:
        params = LlmParams()
        context = Context()
        cls, parsed = select(ORDERS, "order", PolicyChoice(name), provides(params, context.belief))
        self.policy: OrderPolicy = cls(parsed, context)
        self.running = [some_seq(number, rng) for number in range(1, rng.randint(2, 12))]
        self.waiting = [some_seq(number, rng) for number in range(20, rng.randint(21, 40))]
        for seq in self.running:
            self.policy.observe_start(seq, 1, seq.id % 4 > 0)
            self.policy.observe_prefill(seq, 1, len(seq.request.prompt))
            seq.state = SeqState.DECODE
            self.policy.observe_decode(seq, 2, 1)
        order = list(self.waiting)
        Random(shuffle).shuffle(order)
        for seq in order:
            self.policy.observe_wait(seq, 9)

    def query(self) -> object:
        """Head, victims, and who outranks whom."""
        policy = self.policy
        head = policy.head(9)
        pairs = [(a.id, b.id) for a in self.waiting for b in self.running if policy.outranks(a, b)]
        scores = [policy.score(seq, 9) for seq in self.waiting]
        behind = [seq.id for seq in policy.runners_up(9)]
        turns = [(a.id, b.id) for a in self.waiting for b in self.waiting if policy.overtakes(a, b)]
        victims = [seq.id for seq in policy.victims(9)]
        return (None if head is None else head.id, victims, pairs, scores, behind, turns)

    def allowed(self, answer: object) -> bool:
        """The head waits; victims run, may be preempted, and share one urgency, their lowest; turns are strict."""
        assert isinstance(answer, tuple)
        head, victims, pairs, _scores, behind, turns = answer
        open_ = {seq.id: seq for seq in self.running if seq.id % 4 > 0}
        classes = {open_[number].urgency for number in victims}
        urgency = {seq.id: seq.urgency for seq in (*self.waiting, *self.running)}
        return (
            head in [seq.id for seq in self.waiting]
            and head in behind
            and set(behind) <= {seq.id for seq in self.waiting}
            and len(set(victims)) == len(victims) <= 8
            and (bool(victims) or not open_)
            and len(classes) <= 1
            and all(urgency[a] > urgency[b] for a, b in pairs)  # equal urgency never displaces
            and not any((b, a) in turns for a, b in turns)  # no two make each other wait
            and (self.policy.takes_turns or not turns)
        )

    def state(self) -> bytes:
        """Pickled."""
        return pickle.dumps(vars(self.policy))

    def conserves(self) -> None:
        """Admit head after head: everybody enters once."""
        left = {seq.id for seq in self.waiting}
        while (head := self.policy.head(9)) is not None:
            left.remove(head.id)
            self.policy.observe_start(head, 9, True)
            self.policy.observe_unwait(head, 9)
        assert not left


def scene(name: str, rng: Random, shuffle: int = 0) -> OrderScene:
    """A queue and a batch."""
    return OrderScene(name, rng, shuffle)
