"""What every stage of the training shares: the optimisers, the averaged weights, the log, the checkpoint."""

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter


class Muon:
    """Momentum made orthogonal by five Newton-Schulz steps (Jordan 2024), over stacks of weights of equal shape.

    The update is scaled so that its root mean square is AdamW's, and both share a learning rate (Liu et al. 2025).
    """

    def __init__(self, weights: Iterable[Parameter], momentum: float = 0.95, decay: float = 0.01) -> None:
        self.momentum, self.decay = momentum, decay
        self.groups: dict[tuple[int, ...], list[Parameter]] = {}
        for w in weights:
            self.groups.setdefault(tuple(w.shape), []).append(w)
        self.moments = {shape: torch.zeros(len(ws), *shape) for shape, ws in self.groups.items()}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for shape, weights in self.groups.items():
            grads = torch.stack([w.grad if w.grad is not None else torch.zeros_like(w) for w in weights])
            moment = self.moments[shape].lerp_(grads, 1 - self.momentum)
            update = orthogonal(grads.lerp(moment, self.momentum)) * (0.2 * max(shape) ** 0.5)
            for w, u in zip(weights, update, strict=True):
                w.mul_(1 - lr * self.decay).add_(u, alpha=-lr)


def orthogonal(x: Tensor) -> Tensor:
    """The nearest matrix with singular values near one, for each of `x` `[n, rows, columns]`."""
    tall = x.shape[1] > x.shape[2]
    y = x.mT if tall else x
    y = y / (y.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = y @ y.mT
        y = 3.4445 * y + (-4.7750 * a + 2.0315 * a @ a) @ y
    return y.mT if tall else y


@dataclass
class Averaged:
    """Exponential average of the weights; it starts quickly and ends at `horizon`."""

    weights: Sequence[Parameter]
    horizon: float = 0.995
    steps: int = 0
    shadow: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shadow = [w.detach().clone() for w in self.weights]

    def update(self) -> None:
        self.steps += 1
        keep = min(self.horizon, self.steps / (self.steps + 10))
        torch._foreach_lerp_(self.shadow, [w.detach() for w in self.weights], 1 - keep)

    def swap(self) -> None:
        """Puts the averages in place of the weights; a second call puts the weights back."""
        for w, s in zip(self.weights, self.shadow, strict=True):
            kept = w.detach().clone()
            w.data.copy_(s)
            s.copy_(kept)


class Optimiser:
    """Muon for the matrices inside blocks, AdamW for all the rest; gradients are clipped to norm 1."""

    def __init__(self, named: Iterable[tuple[str, Parameter]], lr: float, *, muon: bool = True) -> None:
        self.lr, self.named = lr, list(named)
        inside = {id(w) for n, w in self.named if muon and is_hidden_matrix(n, w)}
        self.weights = [w for _, w in self.named]
        self.muon = Muon([w for w in self.weights if id(w) in inside])
        rest = [w for w in self.weights if id(w) not in inside]
        self.adam = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
        self.average = Averaged(self.weights)

    def step(self, loss: Tensor, scale: float) -> None:
        """One update at `scale` times the learning rate."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.adam.param_groups[0]["lr"] = self.lr * scale
        self.adam.step()
        self.muon.step(self.lr * scale)
        for w in self.weights:
            w.grad = None
        self.average.update()

    def state(self) -> dict[str, object]:
        return {
            "adam": self.adam.state_dict(),
            "muon": self.muon.moments,
            "steps": self.average.steps,
            "shadow": self.average.shadow,
            "weights": [w.detach() for w in self.weights],
        }

    def load(self, state: dict) -> None:
        self.adam.load_state_dict(state["adam"])
        self.muon.moments = state["muon"]
        self.average.steps, self.average.shadow = state["steps"], state["shadow"]
        for w, s in zip(self.weights, state["weights"], strict=True):
            w.data.copy_(s)


def is_hidden_matrix(name: str, w: Parameter) -> bool:
    return w.ndim == 2 and "blocks." in name and "norm" not in name


def save_state(path: Path, state: dict[str, object]) -> None:
    """Written beside and renamed, so that a stage stopped while it saves finds the checkpoint before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def begin(seed: int) -> None:
    """One thread, a fixed seed, no progress bars: every stage starts so."""
    import diffusers

    diffusers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(seed)


class Log:
    """One line of JSON for every report, with the CPU-seconds the stage has used."""

    def __init__(self, stage: str) -> None:
        self.stage, self.cpu, self.wall = stage, time.process_time(), time.monotonic()

    def __call__(self, **values: object) -> None:
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
        spent = {"cpu_s": round(time.process_time() - self.cpu), "wall_s": round(time.monotonic() - self.wall)}
        print(json.dumps({"stage": self.stage, **shown, **spent}), flush=True)
