"""The random worlds notice when a rule of the scheduler is broken."""

import pytest
from tests.property.mutants import ENOUGH, MUTANTS, ROOT, Mutant, noticed

QUICK = ("blocks freed without a fence", "limit one step late", "no reservation at the cap")


def test_every_mutant_still_applies() -> None:
    for mutant in MUTANTS:
        text = (ROOT / "src/headway/sched/llm" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, mutant.claim
        assert mutant.old != mutant.new


# SPEC B8
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.claim in QUICK], ids=lambda m: m.claim)
def test_the_worlds_catch(mutant: Mutant) -> None:
    assert len(noticed(mutant)) == ENOUGH


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.claim not in QUICK], ids=lambda m: m.claim)
def test_the_worlds_catch_the_others_too(mutant: Mutant) -> None:
    assert len(noticed(mutant)) == ENOUGH


@pytest.mark.slow
def test_the_worlds_find_nothing_in_the_tree_as_it_is() -> None:
    assert noticed(None) == []
