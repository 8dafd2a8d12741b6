"""Rows that end together are decoded together, and each is as well as alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.engines.diffusion.asks import asked, pixels, run

from headway.core.artifacts import Denoised
from headway.core.request import DiffusionRequest
from headway.engines.diffusion import decodes
from headway.engines.diffusion.engine import DiffusionEngine

Make = Callable[..., DiffusionEngine]


def rows(count: int, **fields: Any) -> list[DiffusionRequest]:
    """Requests that may share passes."""
    return [asked(**{"deterministic": False, "seed": seed, **fields}) for seed in range(count)]


def watched(engine: DiffusionEngine, monkeypatch: pytest.MonkeyPatch, most: int = 99) -> list[int]:
    """Pictures of each decode; one of more than `most` fails."""
    seen: list[int] = []
    decode = engine._family.decode

    def counting(grid: Any, size: Any) -> Any:
        seen.append(len(grid))
        if len(grid) > most:
            raise RuntimeError("shapes")
        return decode(grid, size)

    monkeypatch.setattr(engine._family, "decode", counting)
    return seen


def bodies(done: Denoised) -> list[bytes]:
    assert not done.failed
    return [picture.body for row in done.made for picture in row.made]


def differ(some: list[bytes], others: list[bytes]) -> int:
    """Most that a value of a pixel differs, of 255."""
    pairs = zip(some, others, strict=True)
    return max(int(np.abs(pixels(a).astype(int) - pixels(b)).max()) for a, b in pairs)


def test_rows_that_end_together_are_one_decode(  # SPEC F4
    engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = rows(2, n=2) + rows(1, seed=7)
    alone = [body for request in requests for body in bodies(run(engine("flux"), [request]))]
    one = engine("flux")
    seen = watched(one, monkeypatch)
    assert differ(bodies(run(one, requests)), alone) <= 1
    assert seen == [5]


def test_deterministic_rows_are_decoded_alone(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine("flux")
    seen = watched(one, monkeypatch)
    run(one, [*rows(2), asked(seed=9), *rows(1, seed=8)])
    assert sorted(seen) == [1, 3]


def test_a_decode_takes_so_many_pixels_and_no_more(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC F4
    one = engine("flux")
    monkeypatch.setattr(decodes, "JOINED_PIXELS_MAX", 2 * 32 * 32)
    seen = watched(one, monkeypatch)
    run(one, rows(5))
    assert seen == [2, 2, 1]


def test_where_the_decode_of_all_fails_each_is_decoded_alone(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine("flux")
    seen = watched(one, monkeypatch, most=1)
    assert len(bodies(run(one, rows(3)))) == 3
    assert seen == [3, 1, 1, 1]


def test_only_the_row_that_cannot_be_decoded_fails(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine("flux")
    watched(one, monkeypatch, most=1)
    done = run(one, [*rows(2), *rows(1, seed=8, n=2)])
    assert [failure.seq for failure in done.failed] == [2]
    assert [row.seq for row in done.made] == [0, 1]
