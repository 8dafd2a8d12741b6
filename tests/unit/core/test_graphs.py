from typing import Final, get_args

import pytest

from headway.core.graphs import Captures, GraphMode, StepGraph, StepGraphs, possible, step_graphs

MODES: Final[tuple[GraphMode, ...]] = get_args(GraphMode)
ABILITIES: Final[tuple[Captures, ...]] = get_args(Captures)  # ascending
LEAST_OF_DECODES: Final[dict[StepGraph, Captures]] = {"none": "nothing", "piecewise": "pieces", "full": "decodes"}
LEAST_OF_MIXED: Final[dict[StepGraph, Captures]] = {**LEAST_OF_DECODES, "full": "everything"}


def least(mode: GraphMode) -> Captures:
    steps = step_graphs(mode)
    return max(LEAST_OF_DECODES[steps.decode], LEAST_OF_MIXED[steps.mixed], key=ABILITIES.index)


# SPEC E1
@pytest.mark.parametrize("captures", ABILITIES)
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_stays_where_it_can_and_never_asks_for_more_than_there_is(mode: GraphMode, captures: Captures) -> None:
    run = possible(mode, captures)
    assert ABILITIES.index(least(run)) <= ABILITIES.index(captures)
    assert (run == mode) == (ABILITIES.index(least(mode)) <= ABILITIES.index(captures))
    assert possible(run, captures) == run
    # What was asked for is not dropped for steps whose pieces can be captured.
    if captures != "nothing":
        asked, left = step_graphs(mode), step_graphs(run)
        assert asked.decode == "none" or left.decode != "none"
        assert asked.mixed == "none" or left.mixed != "none"


# SPEC E1
def test_modes_mean_what_they_mean_in_vllm() -> None:
    assert {mode: step_graphs(mode) for mode in MODES} == {
        "none": StepGraphs("none", "none"),
        "piecewise": StepGraphs("piecewise", "piecewise"),
        "full": StepGraphs("full", "full"),
        "full_decode_only": StepGraphs("full", "none"),
        "full_and_piecewise": StepGraphs("full", "piecewise"),
    }
    assert possible("full", "decodes") == "full_and_piecewise"
    assert possible("full_decode_only", "pieces") == "piecewise"
