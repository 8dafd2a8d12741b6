"""What a step of several rows costs in calls, whatever their number; and that sharing it changes no bit of any."""

from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from tests.unit.engines.diffusion.asks import STEPS, asked, run
from torch.utils._python_dispatch import TorchDispatchMode

from headway.core.request import DiffusionRequest
from headway.engines.diffusion.engine import DiffusionEngine
from headway.engines.diffusion.rows import read
from headway.engines.diffusion.solver import Solver

Make = Callable[..., DiffusionEngine]


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def loose(count: int, **fields: Any) -> list[DiffusionRequest]:
    """Requests that may share batches."""
    return [asked(deterministic=False, seed=n, **fields) for n in range(count)]


def counted(engine: DiffusionEngine, rows: int) -> list[str]:
    """Operations of the third step of a batch."""
    requests = loose(rows)
    run(engine, requests, count=2)
    with Operations() as operations:
        run(engine, requests, 2, 1)
    return operations.names


def latents(engine: DiffusionEngine, seed: int, checkpoint: bytes, done: int = 2) -> torch.Tensor:
    """What a checkpoint holds of them."""
    request = asked(deterministic=False, seed=seed, begun=done, checkpoint=checkpoint)
    return read(request, engine._loaded.model_hash, torch.device("cpu")).tensors["latents"]


@pytest.mark.parametrize("family", ["flux", "flux-distilled", "sd3"])
def test_a_step_takes_no_more_operations_for_more_rows(family: str, engine: Make) -> None:  # SPEC F4
    assert counted(engine(family), 2) == counted(engine(family), 5)


def test_nothing_is_put_side_by_side_again_between_steps(engine: Make) -> None:  # SPEC F4
    alone, batch = (counted(engine("flux"), rows) for rows in (1, 5))
    assert batch.count("aten.cat.default") == alone.count("aten.cat.default")


def test_rows_of_one_way_make_one_solver_step(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC F4
    calls: list[int] = []
    step = diffusers.FlowMatchEulerDiscreteScheduler.step

    def counting(self: Any, output: torch.Tensor, *args: Any, **named: Any) -> Any:
        calls.append(len(output))
        return step(self, output, *args, **named)

    monkeypatch.setattr(diffusers.FlowMatchEulerDiscreteScheduler, "step", counting)
    run(engine("flux"), loose(3))
    assert calls == [3] * STEPS


@pytest.mark.parametrize("family", ["flux", "sd3", "pixart"])
def test_sharing_the_solver_changes_no_bit(  # SPEC F4, F6
    family: str, engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> tuple[list[Any], list[bytes]]:
        one = engine(family)
        bodies = [row.made[0].body for row in run(one, loose(3), count=2, save=(0, 1, 2)).made]
        done = run(one, loose(3), 2, STEPS - 2)
        return [latents(one, seed, body) for seed, body in enumerate(bodies)], [row.made[0].body for row in done.made]

    shared = made()
    monkeypatch.setattr(Solver, "is_like", lambda _self, _other: False)
    apart = made()
    assert all(torch.equal(a, b) for a, b in zip(apart[0], shared[0], strict=True))
    assert apart[1] == shared[1]


def test_a_row_that_leaves_takes_its_own_latents_along(engine: Make) -> None:  # SPEC F6
    one, other = engine("flux"), engine("flux")
    requests = loose(3)
    run(one, requests, count=2)
    run(other, requests, count=2)
    whole = run(one, requests, 2, 1, save=(0, 1, 2))
    rest = run(other, requests[:1], 2, 1, save=(0,))
    first, second = (latents(one, 0, done.made[0].made[0].body, 3) for done in (whole, rest))
    assert first.shape == second.shape
    torch.testing.assert_close(first, second, rtol=0, atol=1e-4)  # the company of a pass changes its last bits
