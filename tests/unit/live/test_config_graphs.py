from collections.abc import Sequence
from typing import get_args

import pytest

from headway.core.graphs import Captures, GraphMode, possible
from headway.live.config import Adjustment, Host, resolve, set_layer

CPU, CUDA = Host(cores=8), Host(cores=8, has_cuda=True)
KEY = "executor.buckets.graph_mode"


def of_graphs(told: Sequence[Adjustment]) -> list[tuple[object, str]]:
    return [(adjustment.value, adjustment.reason) for adjustment in told if adjustment.key == KEY]


# SPEC E1, M1
@pytest.mark.parametrize("mode", get_args(GraphMode))
@pytest.mark.parametrize(
    ("engine", "host", "captures"),
    [
        ("torch", CUDA, "decodes"),
        ("torch", CPU, "nothing"),
        ("synthetic", CPU, "nothing"),
        ("synthetic", CUDA, "nothing"),
    ],
)
def test_a_mode_beyond_the_attention_is_downgraded_and_told(
    mode: GraphMode, engine: str, host: Host, captures: Captures
) -> None:
    given = [set_layer(text) for text in (f"{KEY}={mode}", "executor.buckets.rows=[4, 8]", f"engine.kind={engine}")]
    resolved = resolve(given, host)
    buckets, told = resolved.config.executor.buckets, of_graphs(resolved.adjustments)
    assert buckets.graph_mode == possible(mode, captures)
    assert bool(told) == (buckets.graph_mode != mode)
    for value, reason in told:
        assert value == buckets.graph_mode
        assert f"{mode} was asked for" in reason
    # Padding that was asked for by itself stays; padding for graphs that are not captured goes.
    assert buckets.rows == (() if mode != "none" and captures == "nothing" else (4, 8))


def test_a_downgrade_says_what_limits_it() -> None:  # SPEC E1
    given = [set_layer(f"{KEY}=full"), set_layer("executor.buckets.rows=[4]")]
    ((value, reason),) = of_graphs(resolve(given, CUDA).adjustments)
    assert (value, "captured in steps of decodes only" in reason) == ("full_and_piecewise", True)
    ((value, reason),) = of_graphs(resolve(given, CPU).adjustments)
    assert (value, "engine.device = cpu captures no graphs" in reason) == ("none", True)
