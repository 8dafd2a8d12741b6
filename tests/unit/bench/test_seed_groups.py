"""Runs that differ in their seed alone are taken together."""

from pathlib import Path

import pytest
from tests.unit.bench.test_compare_runs import compared, ends, write

from headway.bench.compare_report import comparison_text
from headway.bench.seed_groups import Pooled, SeedGroups


def runs(folder: Path, kind: str, firsts_ms: dict[int, float]) -> list[Path]:
    """One run per seed, whose first tokens come so much later."""
    return [
        write(folder / f"{kind}{seed}", ends(shift), {"router": kind, "seed": seed}, seed=seed)
        for seed, shift in firsts_ms.items()
    ]


def mean_ttft(found: SeedGroups | None) -> Pooled:
    assert found is not None
    (row,) = [row for row in found.metrics if row.name == "TTFT mean"]
    return row


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    """The seeds differ by 8 ms, the routers by 1 to 1.2 ms in each: clear by pairs, lost among seeds taken apart."""
    paired = compared(
        *runs(tmp_path, "a", {1: 0.0, 2: 4.0, 3: 8.0}), *runs(tmp_path, "b", {1: 1.0, 2: 5.2, 3: 9.1})
    ).seeds
    row = mean_ttft(paired)
    assert row.means[1] is not None
    assert row.means[0] is not None
    (found,) = row.differences[1:]
    assert found is not None
    assert (found.pairs, found.verdict) == (3, "worse")
    assert found.value == pytest.approx(1.1)
    assert found.high - found.value == pytest.approx(4.303 * 0.1 / 3**0.5)
    apart = mean_ttft(
        compared(*runs(tmp_path, "c", {1: 0.0, 2: 4.0, 3: 8.0}), *runs(tmp_path, "d", {4: 1.0, 5: 5.2, 6: 9.1})).seeds
    ).differences[1]
    assert apart is not None
    assert (apart.pairs, apart.verdict) == (0, "same")
    assert apart.value == pytest.approx(1.1)


def test_the_order_of_folders_does_not_matter(tmp_path: Path) -> None:
    a, b = runs(tmp_path, "a", {1: 0.0, 2: 4.0}), runs(tmp_path, "b", {1: 1.0, 2: 6.0})
    mixed = compared(a[0], b[1], b[0], a[1]).seeds
    assert mixed is not None
    assert [group.seeds for group in mixed.groups] == [(1, 2), (2, 1)]
    assert mean_ttft(mixed).differences[1] == mean_ttft(compared(*a, *b).seeds).differences[1]


def test_single_runs_have_no_groups_and_a_single_seed_no_interval(tmp_path: Path) -> None:
    a, b = runs(tmp_path, "a", {1: 0.0, 2: 4.0}), runs(tmp_path, "b", {1: 1.0})
    assert compared(a[0], *b).seeds is None
    row = mean_ttft(compared(*a, *b).seeds)
    assert (row.halves[1], row.differences[1]) == (None, None)


def test_the_same_run_named_twice_is_no_second_seed(tmp_path: Path) -> None:
    a = runs(tmp_path, "a", {1: 0.0})
    again = write(tmp_path / "again", ends(0.0), {"router": "a", "seed": 1}, seed=1)
    assert compared(*a, again).seeds is None


def test_the_table_says_means_and_pairs(tmp_path: Path) -> None:
    text = comparison_text(compared(*runs(tmp_path, "a", {1: 0.0, 2: 4.0}), *runs(tmp_path, "b", {1: 1.0, 2: 5.2})))
    assert "b1 and another seed less a1 and another seed (2 seeds of both)" in text
    assert "+1.1 ms [" in text
