import ctypes

import pytest
import torch

from headway.engines.llm.linear import Linear, NativeLinear, OneDnnLinear, TorchLinear, is_row_invariant

# The shapes of SmolLM2-135M, one whose outputs do not fill a panel, and one deeper than a block of k.
SHAPES = [(960, 576), (576, 1536), (3072, 576), (40, 64), (50, 1000)]


def matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).mul(columns**-0.5)


def linear_of(kind: str, weight: torch.Tensor, bias: torch.Tensor | None, request: pytest.FixtureRequest) -> Linear:
    if kind == "torch":
        return TorchLinear(weight, bias)
    if kind == "onednn":
        return OneDnnLinear(weight, bias, torch.float32)
    library: ctypes.CDLL = request.getfixturevalue("library")
    return NativeLinear(library, 1, weight, bias)


# SPEC B7
@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_alike_in_any_batch(
    kind: str, dtype: torch.dtype, shape: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    linear = linear_of(kind, matrix(*shape).to(dtype), None, request)
    x = torch.randn(70, shape[1], generator=torch.Generator().manual_seed(1))
    whole = linear(x)
    for rows in (*range(1, 26), 31, 32, 33, 48, 64):
        assert torch.equal(linear(x[5 : 5 + rows].contiguous()), whole[5 : 5 + rows])


@pytest.mark.parametrize("kind", ["native", "torch", "onednn"])
@pytest.mark.parametrize("rows", [1, 2, 5, 19])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_close_to_float64(kind: str, rows: int, shape: tuple[int, int], request: pytest.FixtureRequest) -> None:
    weight, bias = matrix(*shape).bfloat16(), torch.randn(shape[0], generator=torch.Generator().manual_seed(2))
    x = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(1))
    exact = x.double() @ weight.double().T + bias.double()
    # K products of variance 1/K: a running sum of K roundings errs by about sqrt(K) * 2**-24, below 1e-5 here.
    torch.testing.assert_close(linear_of(kind, weight, bias, request)(x).double(), exact, atol=1e-5, rtol=0)


def test_one_thread_and_two_give_the_same_bits(library: ctypes.CDLL) -> None:
    weight, x = matrix(960, 576).bfloat16(), matrix(33, 576, seed=4)
    assert torch.equal(NativeLinear(library, 1, weight, None)(x), NativeLinear(library, 2, weight, None)(x))


def test_weights_in_bf16_and_widened_give_the_same_bits(library: ctypes.CDLL) -> None:
    weight = matrix(960, 576).bfloat16()
    for rows in (1, 2, 6, 7, 40):
        x = matrix(rows, 576, seed=4)
        assert torch.equal(NativeLinear(library, 1, weight, None)(x), NativeLinear(library, 1, weight.float(), None)(x))


def test_the_probe_tells_products_that_depend_on_the_batch() -> None:
    weight = matrix(64, 64)

    def dependent(x: torch.Tensor) -> torch.Tensor:
        return x @ weight.T + x.sum() * 1e-6

    assert not is_row_invariant(dependent, 64)
    assert is_row_invariant(TorchLinear(weight, None), 64)
