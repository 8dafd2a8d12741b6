"""Chunk policies of the LLM machine."""

import pickle
from random import Random

from tests.property.llm_world import make_request

from headway.core.request import Slo
from headway.cost.llm import StepCost, StepCostParams, pairs
from headway.sched.llm.params import CHUNKS, LlmParams, provides
from headway.sched.llm.protocols import ChunkPolicy
from headway.sched.llm.sequence import Seq
from headway.sched.llm.state import Draft
from headway.sched.registry import PolicyChoice, select

MS = 1_000_000


class ChunkScene:
    """A step with some decodes, and prompts to go on with."""

    def __init__(self, name: str, rng: Random, shuffle: int) -> None:
        belief = StepCost(StepCostParams(learn=False))
        cls, parsed = select(CHUNKS, "chunk", PolicyChoice(name), provides(LlmParams(), belief))
        self.policy: ChunkPolicy = cls(parsed, belief)
        seqs = []
        for number in range(rng.randint(0, 9)):
            slo = Slo(
                tpot_ns=rng.choice([None, rng.randint(1, 60) * MS]),
                e2e_deadline_ns=rng.choice([None, rng.randint(1, 3000) * MS]),
            )
            seqs.append(Seq(number, make_request(number, (1,), 50, slo=slo), 50, 9, b""))
        Random(shuffle).shuffle(seqs)
        for seq in seqs:
            self.policy.observe_decode(seq, 0, 1)
        self.draft = Draft(7, 100)
        self.draft.decodes, self.draft.kv_tokens = len(seqs), 300 * len(seqs)
        self.draft.contended = rng.random() < 0.3
        self.prompts = [(rng.randint(0, 5000), rng.randint(1, 4000)) for _ in range(5)]

    def query(self) -> object:
        """A size for every prompt, and the reason."""
        sizes = [self.policy.count(self.draft, start, room) for start, room in self.prompts]
        whys = [self.policy.why(self.draft, *prompt, size) for prompt, size in zip(self.prompts, sizes, strict=True)]
        return (sizes, whys)

    def allowed(self, answer: object) -> bool:
        """In an empty step something is computed, and never more than there is."""
        assert isinstance(answer, tuple)
        return all(1 <= size <= room for size, (_start, room) in zip(answer[0], self.prompts, strict=True))

    def state(self) -> bytes:
        """Pickled."""
        return pickle.dumps(vars(self.policy))

    def conserves(self) -> None:
        """Every prompt is computed to its end, token by token once."""
        for start, room in self.prompts:
            at = start
            while at < start + room:
                size = self.policy.count(self.draft, at, start + room - at)
                assert size >= 1
                at += size
            assert at == start + room
        self.draft.prefill_tokens, self.draft.prefill_pairs = 10, pairs(0, 10)
        assert self.policy.count(self.draft, 0, 100) >= 0


def scene(name: str, rng: Random, shuffle: int = 0) -> ChunkScene:
    """A step being planned."""
    return ChunkScene(name, rng, shuffle)
