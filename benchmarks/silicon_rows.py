"""Which rows of aiconfigurator-core's silicon sample are used, and why the others are not.

The table is systems/silicon_sample.csv of aiconfigurator-core 0.12.0 (PyPI, Apache-2.0): closed loops.
"""

import csv
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headway.core.errors import ConfigError
from headway.cost.closed_loop import ClosedLoop
from headway.cost.deployment import Deployment, Layout, kv_tokens_fit
from headway.cost.devices import find_device
from headway.cost.models_catalogue import find_model

SYSTEMS = {
    "a100_sxm": "A100-80G",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
}
MODELS = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
}
DTYPES = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "int4_wo": "int4", "bfloat16": "bfloat16"}
ENGINES = ("vllm", "sglang", "trtllm")
# A dated dump of a public benchmark run; what else there is comes from folders of developers' own studies.
_DATED = re.compile(r"source_file=\d{4}-\d{2}-\d{2}\.csv|db-dump/\d{4}-\d{2}-\d{2}")
_ID_LAYOUT = re.compile(r"_tp(\d+)(?:_0)?_ep(\d+)")

RULES = """\
- `mode = agg`: prefill and decode share devices; a disaggregated row is a fleet, and some are misconfigured;
- the source is a dated dump (`source_file=DATE.csv`, `db-dump/DATE`) that is not marked `wip=True`: rows of developers'
  gap studies have no engine version or precision that could be checked;
- the number type of the weights is given (gpt-oss is taken as published, MXFP4 experts beside 16 bits: its label
  `nvfp4` cannot be right on Hopper);
- model, device and engine are in our catalogues (no Qwen3.5, GLM-5, GB300);
- no pipeline, no attention data parallelism, at most 8 devices, and experts cover the devices (`moe_tp * moe_ep = tp`):
  other rows count devices twice or leave the layout open;
- the concurrency's tokens fit beside the weights by our own account: else requests queue, and TTFT is that of a queue;
- TTFT is not below the time of the prompt at the device's peak, and not above the time of all other prompts and as many
  steps (a broken or a cold server);
- equal rows count once, and where TPOT of one configuration and concurrency differs by more than 30 % all of them are
  left out: something that the table does not tell was changed, such as speculative decoding."""


CONTRADICTION = 1.3  # TPOT of one configuration


class Row(NamedTuple):
    """One measurement."""

    engine: str
    model: str
    device: str
    dtype: str
    tp: int
    ep: int
    load: ClosedLoop
    ttft_ms: float
    tpot_ms: float

    @property
    def configuration(self) -> tuple[str, str, str, str, int, int, int, int]:
        """What is served how to what lengths: rows of one differ in concurrency only."""
        return (self.engine, self.model, self.device, self.dtype, self.tp, self.ep, self.load.prompt, self.load.output)

    @property
    def is_first(self) -> bool:
        """Half of the configurations, by hash."""
        return zlib.crc32(repr(self.configuration).encode()) % 2 == 0

    def deployment(self) -> Deployment:
        return Deployment(
            model=find_model(self.model),
            device=find_device(self.device),
            layout=Layout(tp=self.tp, ep=self.ep),
            dtype=self.dtype,
        )


def read(path: Path) -> tuple[list[Row], Counter[str]]:
    """Usable rows, and how many were left out by which rule."""
    found: dict[Row, None] = {}  # equal rows are one measurement in two dumps
    left_out = Counter[str]()
    with path.open() as file:
        for line in csv.DictReader(file):
            try:
                row = _row(line)
            except ValueError:
                row = "a number is missing"
            except ConfigError:
                row = "layout that the model does not allow"
            if isinstance(row, str):
                left_out[row] += 1
            elif row in found:
                left_out["twice"] += 1
            else:
                found[row] = None
    several: dict[tuple[object, ...], list[float]] = {}
    for row in found:
        several.setdefault((*row.configuration, row.load.concurrency), []).append(row.tpot_ms)
    kept = []
    for row in found:
        same = several[*row.configuration, row.load.concurrency]
        if max(same) > CONTRADICTION * min(same):
            left_out["contradicted"] += 1
        else:
            kept.append(row)
    return kept, left_out


def _row(line: Mapping[str, str]) -> Row | str:
    if line["mode"] != "agg":
        return "not aggregated"
    source = line["silicon_data_source"]
    if not _DATED.match(source) or "wip=True" in source:
        return "source not dated, or work in progress"
    model, device, engine = MODELS.get(line["model_path"]), SYSTEMS.get(line["system"]), line["backend"]
    if model is None or device is None or engine not in ENGINES:
        return "model, device or engine in no catalogue"
    dtype = "bfloat16" if model.startswith("gpt-oss") else DTYPES.get(line["gemm_quant_mode"])
    if dtype is None:
        return "number type not given"
    tp, ep, experts_tp = (int(line[key] or 0) or 1 for key in ("tp_size", "moe_ep_size", "moe_tp_size"))
    dense = find_model(model).experts is None
    spread = int(line["pp_size"] or 1) > 1 or int(line["attention_dp_size"] or 0) > 1 or tp > 8
    if spread or (not dense and experts_tp * ep != tp):
        return "layout over several hosts, or unclear"
    load = ClosedLoop(int(line["isl"]), int(line["osl"]), int(line["batch_size"]))
    ttft_ms, tpot_ms = float(line["silicon_ttft_ms"]), float(line["silicon_tpot_ms"])
    row = Row(engine, model, device, dtype, tp, 1 if dense else ep, load, ttft_ms, tpot_ms)
    deployment = row.deployment()
    if load.concurrency * (load.prompt + load.output) > kv_tokens_fit(deployment):
        return "concurrency does not fit"
    parts = deployment.model
    active = parts.parameters_active - 2 * parts.head_parameters
    peak_ms = 2 * active * load.prompt / (deployment.device.flops_of(dtype) * tp) * 1e3
    slowest_ms = load.concurrency * (10 * peak_ms + 2 * tpot_ms) + 1000
    if not peak_ms <= ttft_ms <= slowest_ms:
        return "TTFT cannot be"
    return row
