"""Draws one token per row from truncated softmax distributions: a C++ kernel, and torch with the same meaning.

Temperature, then min_p, top_k, top_p; equals at an edge are kept together, so no order among them matters. The
cumulative distribution, in order of ids and in float64, is inverted at one uniform number per row.
"""

import ctypes
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch

_SHORT_SORT = 1024


class DrawRows(msgspec.Struct, frozen=True):
    """One entry per row; units lie in [0, 1), top_k 0 keeps all."""

    units: npt.NDArray[np.float64]
    temperature: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]


class Upload(Protocol):
    """Puts an array where the logits lie."""

    def __call__(self, array: npt.NDArray[Any], /) -> torch.Tensor: ...  # of any number type


class Draw(Protocol):
    """One token per row of logits, float32 [rows, vocab], contiguous."""

    def __call__(self, logits: torch.Tensor, rows: DrawRows) -> npt.NDArray[np.int32]: ...


class NativeDraw:
    """The C++ kernel: a histogram finds the edges, so no row is sorted (0.3 ms where a sort of 49,152 takes 6 ms)."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._kernel, self._threads = library.hw_draw, threads

    def __call__(self, logits: torch.Tensor, rows: DrawRows) -> npt.NDArray[np.int32]:
        count, vocab = logits.shape
        tokens = np.empty(count, np.int32)
        arrays = (rows.temperature, rows.min_p, rows.top_k, rows.top_p, rows.units, tokens)
        self._kernel(
            *(logits.data_ptr(), logits.stride(0), count, vocab),
            *(array.ctypes.data for array in arrays),
            self._threads,
        )
        return tokens


def torch_draw(logits: torch.Tensor, rows: DrawRows) -> npt.NDArray[np.int32]:
    """The same by sorting."""
    return draw_where_logits_lie(logits, rows, torch.from_numpy).numpy()


def draw_where_logits_lie(logits: torch.Tensor, rows: DrawRows, upload: Upload) -> torch.Tensor:
    """int32 [rows] beside the logits. On a device nothing here waits for it: no shape depends on a value there."""
    temperature = upload(rows.temperature)[:, None]
    # The largest logit goes to 0 first, so that a tiny temperature cannot overflow.
    probabilities = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / temperature, dim=-1)
    floor = upload(rows.min_p)[:, None] * probabilities.amax(dim=-1, keepdim=True)
    probabilities = torch.where(probabilities >= floor, probabilities, 0.0)
    cut = np.flatnonzero((rows.top_k > 0) | (rows.top_p < 1.0))
    if len(cut):
        index = upload(cut)
        part = probabilities[index]
        least = _threshold(part, upload(rows.top_k[cut]), upload(rows.top_p[cut]))
        probabilities[index] = torch.where(part >= least[:, None], part, 0.0)
    cumulative = probabilities.double().cumsum(dim=-1)
    target = upload(rows.units)[:, None] * cumulative[:, -1:]
    return (cumulative <= target).sum(dim=-1).to(torch.int32)


def _threshold(probabilities: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The least probability each row keeps; equals at the edge are kept together, so no order among them matters."""
    vocab = probabilities.shape[1]
    limit = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
    width = min(vocab, _SHORT_SORT)
    ordered = probabilities.topk(width, dim=-1).values
    # A row is served by its largest entries alone if they reach its top_k, or its top_p of the whole mass.
    whole = probabilities.double().sum(dim=-1)
    reached = (limit <= width) | ((limit == vocab) & (ordered.double().sum(dim=-1) >= top_p * whole))
    # Asking would wait for a device, so there all rows are sorted.
    if ordered.device.type != "cpu" or not bool(reached.all()):
        ordered = probabilities.sort(dim=-1, descending=True).values
    mass = ordered.double().cumsum(dim=-1)
    within = limit.clamp(max=ordered.shape[1]) - 1
    full = torch.where((limit < vocab)[:, None], mass.gather(1, within[:, None]), whole[:, None])
    before = mass - ordered.double()
    kept = torch.minimum((before < top_p[:, None] * full).sum(dim=-1), within + 1).clamp(min=1)
    return ordered.gather(1, kept[:, None] - 1)[:, 0]
