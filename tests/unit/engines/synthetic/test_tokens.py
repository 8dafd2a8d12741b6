from headway.core.request import FinishReason, SamplingParams
from headway.engines.synthetic.tokens import is_stop, reference, sample

GREEDY = SamplingParams(max_tokens=20, temperature=0)


def test_every_earlier_token_decides_the_next() -> None:  # SPEC B7
    base, _ = reference([1, 2, 3, 4], GREEDY, 32_000)
    for place in range(4):
        changed = [1, 2, 3, 4]
        changed[place] += 1
        other, _ = reference(changed, GREEDY, 32_000)
        assert other[0] != base[0]


def test_greedy_ignores_the_seed_and_a_temperature_does_not() -> None:
    seeded = SamplingParams(max_tokens=20, temperature=0, seed=9)
    warm = [SamplingParams(max_tokens=20, temperature=1.0, seed=seed) for seed in (0, 1)]
    assert reference([1], seeded, 99) == reference([1], GREEDY, 99)
    assert reference([1], warm[0], 99) != reference([1], warm[1], 99)
    assert sample(5, 3, warm[0], 99) == sample(5, 3, warm[0], 99)


def test_stops_at_end_of_sequence_unless_told_not_to() -> None:
    outputs, reason = reference([1], SamplingParams(max_tokens=500, temperature=0), 10, eos=(3,))
    assert reason is FinishReason.STOP
    assert outputs.index(3) == len(outputs) - 1
    ignoring = SamplingParams(max_tokens=50, temperature=0, ignore_eos=True)
    assert len(reference([1], ignoring, 10, eos=(3,))[0]) == 50


def test_min_tokens_and_stop_token_ids() -> None:
    sampling = SamplingParams(max_tokens=9, temperature=0, min_tokens=2, stop_token_ids=(7,), ignore_eos=True)
    assert not is_stop(7, 2, sampling, ())
    assert is_stop(7, 3, sampling, ())
    assert not is_stop(8, 3, sampling, (8,))
