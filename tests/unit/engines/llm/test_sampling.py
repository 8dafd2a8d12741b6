from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headway.core.ids import RequestId
from headway.core.plans import NewSequence
from headway.core.request import SamplingParams
from headway.engines.llm.draw import torch_draw
from headway.engines.llm.sampling import Sampled, SamplingTable, sample, uniform
from headway.engines.llm.sequences import SequenceTable

VOCAB = 50
EOS = 2


class Bench:
    """Sequences with a sampling table, and a step of sampling over all of them."""

    def __init__(self) -> None:
        self.sequences = SequenceTable(max_tokens=64, max_blocks=8, pool_blocks=8)
        self.table = SamplingTable((EOS,))
        self.slots: list[int] = []

    def add(self, prompt: tuple[int, ...] = (5,), outputs: tuple[int, ...] = (), **sampling: Any) -> int:
        params = SamplingParams(**{"max_tokens": 10, "temperature": 0.0, **sampling})
        seq = len(self.slots)
        new = NewSequence(seq=seq, request=RequestId(f"req-{seq}"), prompt=prompt, outputs=outputs, sampling=params)
        slot = self.sequences.add(new)
        self.table.set(slot, params)
        self.slots.append(slot)
        return slot

    def sample(self, logits: torch.Tensor) -> Sampled:
        return sample(logits.clone(), np.array(self.slots, np.intp), self.sequences, self.table, torch_draw)


def flat(**raised: float) -> torch.Tensor:
    """One row of zeros with some logits raised: flat(t7=3.0)."""
    row = torch.zeros(1, VOCAB)
    for name, value in raised.items():
        row[0, int(name[1:])] = value
    return row


def noise(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)).mul(2)


def one(logits: torch.Tensor, **sampling: Any) -> int:
    bench = Bench()
    bench.add(**sampling)
    return int(bench.sample(logits).tokens[0])


# SPEC B7
@pytest.mark.parametrize("more", [{}, {"logprobs": 0}, {"min_tokens": 1}])
def test_greedy_breaks_ties_by_the_lowest_id(more: dict[str, int]) -> None:
    assert one(flat(t7=3.0, t11=3.0, t30=3.0), **more) == 7
    assert one(torch.zeros(1, VOCAB), **more) == 0


def test_ties_go_to_the_lowest_id_at_the_width_of_a_real_vocabulary() -> None:
    logits = torch.zeros(3, 49152)
    logits[0, [40000, 8191, 49151]] = 1.0
    logits[1, [16385, 16384]] = 1.0
    bench = Bench()
    for _ in range(3):
        bench.add()
    assert bench.sample(logits).tokens.tolist() == [8191, 16384, 0]


class Calls(TorchDispatchMode):
    """Names of the operations that torch performs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # as torch has it
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


# SPEC E1: torch's argmax took 53 us a row of 49,152 on one core, the largest cost of a step beside its products
def test_greedy_rows_cost_no_operation_of_torch_on_the_host() -> None:
    bench, logits = Bench(), noise(3)
    for _ in range(3):
        bench.add()
    with Calls() as calls:
        found = sample(logits, np.array(bench.slots, np.intp), bench.sequences, bench.table, torch_draw)
    assert set(calls.names) <= {"aten.detach.default"}  # a view for numpy
    assert found.tokens.dtype == np.int32
    assert found.tokens.tolist() == logits.argmax(dim=-1).tolist()


def test_a_logit_that_is_no_number_wins_as_it_does_in_torch() -> None:
    logits = noise(2)
    logits[0, [9, 4]] = torch.nan
    bench = Bench()
    for _ in range(2):
        bench.add()
    assert bench.sample(logits).tokens.tolist() == logits.argmax(dim=-1).tolist()


def test_draws_follow_the_softmax_of_the_logits() -> None:
    logits = flat(t3=2.0, t4=1.0, t9=-1.0)
    bench = Bench()
    rows = 20_000
    for seed in range(rows):
        bench.add(temperature=0.8, seed=seed)
    counts = np.bincount(bench.sample(logits.repeat(rows, 1)).tokens, minlength=VOCAB)
    expected = torch.softmax(logits[0].double() / 0.8, dim=-1).numpy() * rows
    # Pearson's statistic with 49 degrees of freedom exceeds 85.4 once in a thousand.
    assert float(((counts - expected) ** 2 / expected).sum()) < 85.4


# SPEC B7
def test_a_draw_depends_on_seed_and_position_only() -> None:
    logits = noise(1)
    alone = Bench()
    alone.add(prompt=(5, 6), outputs=(9, 9, 9), temperature=1.0, seed=42)
    crowd = Bench()
    for seed in range(5):
        crowd.add(temperature=1.5, top_k=3, seed=seed)
    crowd.add(prompt=(8,), outputs=(1, 2, 3), temperature=1.0, seed=42)
    assert alone.sample(logits).tokens[0] == crowd.sample(logits.repeat(6, 1)).tokens[5]


def test_other_positions_and_other_seeds_draw_otherwise() -> None:
    seeds = np.repeat(np.arange(64, dtype=np.uint64), 64)
    units = uniform(seeds, np.tile(np.arange(64, dtype=np.int32), 64))
    assert len(np.unique(units)) == len(units)
    assert units.min() >= 0.0
    assert units.max() < 1.0
    assert abs(units.mean() - 0.5) < 4 * (1 / 12 / len(units)) ** 0.5


def test_repetition_counts_prompt_and_outputs() -> None:
    logits = flat(t5=3.0, t7=2.0, t8=1.9)
    assert one(logits, prompt=(5,), outputs=(7,), repetition_penalty=2.0) == 8


def test_repetition_pushes_a_negative_logit_down() -> None:
    logits = torch.full((1, VOCAB), -5.0)
    logits[0, 5], logits[0, 6] = -1.0, -1.5
    assert one(logits, prompt=(5,), repetition_penalty=2.0) == 6


def test_presence_and_frequency_count_outputs_only() -> None:
    logits = flat(t5=3.0, t7=2.9, t8=1.5)
    assert one(logits, prompt=(5, 5, 5), outputs=(7,), presence_penalty=1.0) == 5
    assert one(logits, prompt=(8,), outputs=(5, 5, 5, 7), frequency_penalty=0.5) == 7
    assert one(logits, prompt=(8,), outputs=(5, 5, 5, 5, 7, 7, 7), frequency_penalty=0.5) == 8


def test_a_penalty_of_one_row_leaves_the_others_alone() -> None:
    bench = Bench()
    bench.add(prompt=(5,), repetition_penalty=4.0)
    bench.add(prompt=(5,))
    assert bench.sample(flat(t5=3.0, t7=2.0).repeat(2, 1)).tokens.tolist() == [7, 5]


def test_a_bias_moves_the_choice_and_allowed_ids_bound_it() -> None:
    logits = flat(t5=3.0, t7=2.0)
    assert one(logits, logit_bias=((7, 1.5),)) == 7
    assert one(logits, logit_bias=((5, -100.0),)) == 7
    assert one(logits, allowed_token_ids=(20, 21)) == 20


def test_min_tokens_holds_back_every_stop_token() -> None:
    logits = flat(t2=9.0, t40=8.0, t7=1.0)
    assert one(logits, stop_token_ids=(40,)) == EOS
    assert one(logits, stop_token_ids=(40,), min_tokens=1) == 7
    assert one(logits, outputs=(1,), stop_token_ids=(40,), min_tokens=1) == EOS


def test_knows_which_tokens_stop() -> None:
    bench = Bench()
    bench.add()
    bench.add(ignore_eos=True)
    bench.add(stop_token_ids=(7, 9, 11))
    stops = [bench.table.is_stop(np.array(bench.slots, np.intp), np.full(3, token, np.int32)) for token in (EOS, 9)]
    assert [stop.tolist() for stop in stops] == [[True, False, True], [False, False, True]]


def test_scores_are_the_log_probabilities_of_the_model_itself() -> None:
    logits = noise(1)
    bench = Bench()
    bench.add(prompt=(5,), logprobs=3, repetition_penalty=3.0, logit_bias=((9, 50.0),))
    score = bench.sample(logits).scores[0]
    exact = torch.log_softmax(logits[0].double(), -1)
    assert score is not None
    # float32 log_softmax of values below 10 errs by a few 2**-23 of them.
    assert score.logprob == pytest.approx(float(exact[9]), abs=1e-5)
    assert score.top_ids == tuple(exact.topk(3).indices.tolist())
    assert score.top_logprobs == pytest.approx(exact.topk(3).values.tolist(), abs=1e-5)


def test_only_rows_that_asked_have_scores() -> None:
    bench = Bench()
    bench.add()
    bench.add(logprobs=0)
    first, second = bench.sample(noise(2)).scores
    assert first is None
    assert second is not None
    assert second.top_ids == ()


def test_a_slot_forgets_the_sequence_before() -> None:
    bench = Bench()
    bench.add(logit_bias=((7, 100.0),), stop_token_ids=(9,), temperature=1.0)
    bench.sequences.remove(0)
    bench.slots.clear()
    bench.add()
    assert bench.sample(flat(t5=3.0)).tokens.tolist() == [5]
    assert bench.table.is_stop(np.array(bench.slots, np.intp), np.array([9], np.int32)).tolist() == [False]
