import numpy as np
import pytest
import torch

from headway.engines.llm.draw import Draw, DrawRows, NativeDraw, torch_draw

VOCAB = 50


@pytest.fixture(params=["native", "torch"])
def draw(request: pytest.FixtureRequest) -> Draw:
    if request.param == "torch":
        return torch_draw
    return NativeDraw(request.getfixturevalue("library"), 1)


def rows_of(count: int, temperature: float = 1.0, min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> DrawRows:
    """Units spread evenly over [0, 1)."""
    return DrawRows(
        units=(np.arange(count) + 0.5) / count,
        temperature=np.full(count, temperature, np.float32),
        min_p=np.full(count, min_p, np.float32),
        top_k=np.full(count, top_k, np.int64),
        top_p=np.full(count, top_p, np.float64),
    )


def drawn(draw: Draw, logits: torch.Tensor, count: int = 2000, **how: float) -> np.ndarray:
    return draw(logits.repeat(count, 1), rows_of(count, **how))  # type: ignore[arg-type]  # ints and floats as named


def noise(width: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, width, generator=torch.Generator().manual_seed(seed)).mul(2)


def of_shares(*shares: float) -> torch.Tensor:
    logits = torch.full((1, VOCAB), -30.0)
    logits[0, : len(shares)] = torch.tensor(shares).log()
    return logits


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_evenly_spread_units_give_each_token_its_share(draw: Draw, temperature: float) -> None:
    logits = noise()
    counts = np.bincount(drawn(draw, logits, count=5000, temperature=temperature), minlength=VOCAB)
    shares = torch.softmax(logits[0].double() / temperature, dim=-1).numpy() * 5000
    # Each token owns an interval of the unit line, so its count is its share rounded up or down (and float32 noise).
    assert np.abs(counts - shares).max() < 1.5


def test_top_k_keeps_the_k_best(draw: Draw) -> None:
    logits = noise()
    assert set(drawn(draw, logits, top_k=4)) == set(logits[0].topk(4).indices.tolist())


def test_top_p_keeps_the_least_set_that_reaches_the_mass(draw: Draw) -> None:
    logits = noise()
    ordered = torch.softmax(logits[0].double(), -1).sort(descending=True)
    count = int((ordered.values.cumsum(0) - ordered.values < 0.6).sum())
    assert set(drawn(draw, logits, top_p=0.6)) == set(ordered.indices[:count].tolist())


def test_top_p_counts_the_mass_left_by_top_k(draw: Draw) -> None:
    logits = of_shares(0.4, 0.3, 0.2, 0.1)
    # Of the two best, 0.4 / 0.7 = 0.57 reaches 0.5 alone; of the whole mass it would not.
    assert set(drawn(draw, logits, top_k=2, top_p=0.5)) == {0}
    assert set(drawn(draw, logits, top_p=0.5)) == {0, 1}


def test_min_p_keeps_what_reaches_its_share_of_the_best(draw: Draw) -> None:
    assert set(drawn(draw, of_shares(0.4, 0.3, 0.2, 0.1), min_p=0.45)) == {0, 1, 2}


def test_equals_at_the_edge_are_kept_together(draw: Draw) -> None:
    assert set(drawn(draw, of_shares(0.4, 0.2, 0.2, 0.2), top_k=2)) == {0, 1, 2, 3}


def test_a_tiny_temperature_draws_the_best(draw: Draw) -> None:
    logits = noise()
    assert set(drawn(draw, logits, temperature=1e-8)) == {int(logits.argmax())}


def test_a_tiny_top_p_draws_the_best(draw: Draw) -> None:
    logits = noise()
    assert set(drawn(draw, logits, top_p=1e-9)) == {int(logits.argmax())}


def test_masked_tokens_are_never_drawn(draw: Draw) -> None:
    logits = noise()
    logits[0, ::2] = -torch.inf
    assert all(token % 2 for token in drawn(draw, logits).tolist())


# SPEC B7
def test_a_row_draws_alike_beside_rows_of_other_kinds(draw: Draw) -> None:
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(1))
    logits[1] = 0.0  # flat: 0.9 of its mass lies far beyond the largest 1024
    rows = DrawRows(
        units=np.array([0.77, 0.5, 0.2]),
        temperature=np.array([1.0, 1.0, 0.7], np.float32),
        min_p=np.zeros(3, np.float32),
        top_k=np.array([0, 0, 2000]),
        top_p=np.array([0.3, 0.9, 0.95]),
    )
    together = draw(logits, rows)
    for row in range(3):
        part = slice(row, row + 1)
        alone = DrawRows(**{name: getattr(rows, name)[part] for name in DrawRows.__struct_fields__})
        assert draw(logits[part].contiguous(), alone)[0] == together[row]


@pytest.mark.parametrize("how", [{}, {"top_p": 0.9}, {"top_k": 40}, {"top_k": 3000, "top_p": 0.5}, {"min_p": 0.02}])
def test_the_kernel_draws_what_torch_draws(how: dict[str, float], request: pytest.FixtureRequest) -> None:
    native = NativeDraw(request.getfixturevalue("library"), 1)
    logits = noise(width=4999, seed=2)
    ours, theirs = (drawn(kind, logits, count=400, **how) for kind in (native, torch_draw))
    # The exponentials differ in the last place, which now and then moves a boundary past one of 400 units.
    assert (ours != theirs).mean() <= 0.01
