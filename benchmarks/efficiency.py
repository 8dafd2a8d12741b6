"""Fits `cost.efficiency`'s sets to measured TPOT at fixed concurrency, and says how far off they are.

    python benchmarks/efficiency.py silicon_sample.csv [--engine vllm|sglang|trtllm] [--fit times|all]

The table is systems/silicon_sample.csv of aiconfigurator-core (PyPI, Apache-2.0). Used are aggregated rows without
pipeline or attention data parallelism, up to 256 requests at a time; left out are rows that queue (TTFT over 30 TPOT
per 1024 tokens) and the sixteen that tests/unit/cost/test_roofline_silicon.py holds the result to. Fits see H100 and
H200 and four models; all else is reported as not fitted. `--fit times` keeps the shares of peaks that `vllm` has.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headway.cost.closed_loop import ClosedLoop, tpot_ns
from headway.cost.deployment import Deployment, Layout
from headway.cost.devices import find_device
from headway.cost.efficiency import Efficiency, find_efficiency
from headway.cost.models_catalogue import find_model
from headway.cost.roofline import RooflineModel

SYSTEMS = {"h100_sxm": "H100-SXM", "h200_sxm": "H200", "b200_sxm": "B200", "b300_sxm": "B300"}
FITTED_DEVICES = ("H100-SXM", "H200")
FITTED_MODELS = ("llama-3.1-70b", "llama-3.1-8b", "qwen3-32b", "gpt-oss-120b")
MODELS = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
}
DTYPES = {"": "bfloat16", "bfloat16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4"}
SHARES = ("compute", "memory", "attention", "collective_floor")
TIMES = ("overhead_ns", "row_ns")
HELD_OUT = {
    ("llama-3.1-70b", "H100-SXM", 2, 4),
    ("llama-3.1-70b", "H100-SXM", 2, 64),
    ("llama-3.1-70b", "H100-SXM", 4, 16),
    ("llama-3.1-70b", "H100-SXM", 4, 64),
    ("llama-3.1-70b", "H100-SXM", 8, 32),
    ("llama-3.1-70b", "H200", 1, 4),
    ("llama-3.1-70b", "H200", 1, 64),
    ("llama-3.1-70b", "H200", 2, 64),
}


class Row(NamedTuple):
    model: str
    device: str
    tp: int
    ep: int
    dtype: str
    load: ClosedLoop
    tpot_ms: float


def rows(path: Path, engine: str) -> Iterator[Row]:
    """Usable rows of one engine."""
    with path.open() as file:
        for line in csv.DictReader(file):
            if line["backend"] != engine or line["mode"] != "agg" or not line["tp_size"]:
                continue
            model, device = MODELS.get(line["model_path"]), SYSTEMS.get(line["system"])
            dtype = DTYPES.get(line["gemm_quant_mode"])
            if model is None or device is None or dtype is None:
                continue
            if model == "gpt-oss-120b":  # labelled nvfp4 even on Hopper: it runs as published
                dtype = "bfloat16"
            tp, batch, isl, osl = (int(line[key]) for key in ("tp_size", "batch_size", "isl", "osl"))
            ep = max(1, int(line["moe_ep_size"] or 1))
            spread = tp > 8 or tp % ep or int(line["pp_size"] or 1) > 1 or int(line["attention_dp_size"] or 1) > 1
            ttft_ms, tpot_ms = float(line["silicon_ttft_ms"]), float(line["silicon_tpot_ms"])
            queues = ttft_ms > 30 * tpot_ms * max(1, isl / 1024)
            held_out = ((model, device, tp, batch) in HELD_OUT and (isl, osl) == (1024, 1024)) or (
                model in ("qwen3-32b", "llama-3.1-8b") and (isl, osl) == (1024, 128)
            )
            if batch <= 256 and not (spread or queues or held_out):
                yield Row(model, device, tp, ep, dtype, ClosedLoop(isl, osl, batch), tpot_ms)


def is_fitted(row: Row) -> bool:
    """Whether fits see this row."""
    return row.device in FITTED_DEVICES and row.model in FITTED_MODELS


def error(row: Row, reach: Efficiency) -> float:
    """Logarithm of predicted over measured."""
    deployment = Deployment(
        model=find_model(row.model),
        device=find_device(row.device),
        layout=Layout(tp=row.tp, ep=row.ep),
        dtype=row.dtype,
        efficiency=reach,
    )
    return math.log(tpot_ns(RooflineModel(deployment), row.load) / 1e6 / row.tpot_ms)


def search(loss: Callable[[Efficiency], float], start: Efficiency, names: tuple[str, ...]) -> Efficiency:
    """Change one number at a time by a shrinking factor while that lowers the loss. Shares stay within (0.05, 1]."""
    best, least, factor = start, loss(start), 1.25
    while factor > 1.005:
        moved = False
        for name in names:
            for times in (factor, 1 / factor):
                value = getattr(best, name) * times
                if name in SHARES and not 0.05 < value <= 1:
                    continue
                tried = msgspec.structs.replace(best, **{name: value})
                if (got := loss(tried)) < least - 1e-6:
                    best, least, moved = tried, got, True
                    break
        if not moved:
            factor = math.sqrt(factor)
    return best


def report(table: list[Row], reach: Efficiency) -> None:
    """Print median and 90th percentile of the relative error, for all rows and per model, device and layout."""
    groups: dict[str, list[float]] = {}
    for row in table:
        for group in ("fitted" if is_fitted(row) else "not fitted", f"{row.model} {row.device} tp{row.tp} ep{row.ep}"):
            groups.setdefault(group, []).append(math.exp(error(row, reach)) - 1)
    print("| rows | n | median | p90 | bias |\n|---|---|---|---|---|")
    for group, found in groups.items():
        sizes = sorted(map(abs, found))
        high = sizes[math.ceil(0.9 * len(sizes)) - 1]
        bias = sum(found) / len(found)
        print(f"| {group} | {len(found)} | {sizes[len(sizes) // 2]:.1%} | {high:.1%} | {bias:+.1%} |")


def main() -> None:
    """Fit and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--engine", default="vllm", choices=("vllm", "sglang", "trtllm"))
    parser.add_argument("--fit", choices=("times", "all"), help="fit before the report; all: shares of peaks too")
    options = parser.parse_args()
    table = list(rows(options.table, options.engine))
    if options.fit is not None:
        names = (*SHARES, *TIMES) if options.fit == "all" else TIMES
        seen = [row for row in table if is_fitted(row)]
        fitted = search(lambda reach: sum(abs(error(row, reach)) for row in seen), find_efficiency("vllm"), names)
        print(", ".join(f"{name} {getattr(fitted, name):.3g}" for name in (*SHARES, *TIMES)))
        report(table, fitted)
    print(f"\n{options.engine}, as the catalogue has it:")
    report(table, find_efficiency(options.engine))


if __name__ == "__main__":
    main()
