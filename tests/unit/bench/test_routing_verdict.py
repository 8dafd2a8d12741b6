import msgspec
import pytest
from tests.unit.bench.test_routing_study import job, summary

from headway.bench.routing_study import Result
from headway.bench.routing_verdict import judge, noise_of, share, spread


def runs(*attained: float, offered: int = 400) -> list[Result]:
    return [Result(job(seed), summary(met, offered), 0.0) for seed, met in enumerate(attained)]


def test_the_best_rival_is_the_one_to_beat() -> None:
    verdict = judge(runs(0.9, 0.9), {"a": runs(0.5, 0.5), "b": runs(0.6, 0.6)})
    assert (verdict.word, verdict.rival) == ("wins", "b")
    assert verdict.gain == pytest.approx(0.5)


def test_within_the_noise_is_a_tie_whoever_leads() -> None:
    assert judge(runs(0.90), {"a": runs(0.91)}).word == "ties"
    assert judge(runs(0.91), {"a": runs(0.90)}).word == "ties"


def test_clearly_behind_is_a_loss() -> None:
    assert judge(runs(0.5, 0.5), {"a": runs(0.8, 0.8)}).word == "loses"


def test_seeds_that_disagree_are_noise() -> None:
    calm, wild = noise_of(runs(0.9, 0.9), runs(0.8, 0.8)), noise_of(runs(0.9, 0.5), runs(0.6, 0.8))
    assert wild > 2 * calm


def test_rivals_without_all_seeds_are_left_out() -> None:
    verdict = judge(runs(0.7, 0.7), {"a": runs(0.6, 0.6), "partial": runs(0.99)})
    assert verdict.rival == "a"


def test_equal_seeds_pair_up_whatever_more_the_rival_ran() -> None:
    more = [*runs(0.6, 0.6), Result(msgspec.structs.replace(job(9)), summary(0.1), 0.0)]
    assert judge(runs(0.7, 0.7), {"a": more}).best == pytest.approx(0.6)


def test_share_and_spread_are_over_seeds() -> None:
    assert share(runs(0.8, 0.9)) == pytest.approx(0.85)
    assert spread(runs(0.8, 0.8)) == 0.0
    assert spread(runs(0.5, offered=100)) == pytest.approx(0.05)
