"""vLLM's own Scheduler without a model, in an environment that has vLLM; `benchmarks/scheduler.py` and a test drive it.

    PYTHON benchmarks/scheduler_vllm.py steady RUNNING BLOCK TOKENS     (then numbers of steps on standard input)
    PYTHON benchmarks/scheduler_vllm.py churn RUNNING BLOCK TOKENS
    PYTHON benchmarks/scheduler_vllm.py decide < WORLDS.json

Each number of steps is answered by a JSON array: CPU nanoseconds of `schedule` + `update_from_output`, one per step.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 50_000,
    "max_position_embeddings": 1 << 17,
    "torch_dtype": "float32",
}
PROMPT, OUTPUT = 1000, 200
clock = time.process_time_ns


class Bench:
    """One scheduler; `step` plays the model: every row that is not in the middle of its prompt samples one token."""

    def __init__(self, running: int, block: int, blocks: int, budget: int, *, cache: bool, chunk: int = 0) -> None:
        self.folder = tempfile.TemporaryDirectory()
        Path(self.folder.name, "config.json").write_text(json.dumps(MODEL))
        config = EngineArgs(
            model=self.folder.name,
            skip_tokenizer_init=True,
            max_model_len=1 << 15,
            max_num_seqs=running,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=chunk,
            enable_prefix_caching=cache,
            async_scheduling=False,
            block_size=block,
            dtype="float32",
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=64, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            structured_output_manager=StructuredOutputManager(config),
            block_size=block,
            log_stats=True,
        )
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(block, sha256) if cache else None
        self.stops: dict[str, int] = {}  # request -> outputs after which it samples end-of-sequence

    def add(self, name: str, prompt: Sequence[int], outputs: int) -> None:
        """Queue a request."""
        sampling = SamplingParams(max_tokens=outputs, temperature=0.0, stop_token_ids=[0])
        self.scheduler.add_request(Request(name, list(prompt), sampling, None, block_hasher=self.hasher))

    def run(self, plan: SchedulerOutput, token: Callable[[str, int], int] = lambda _name, _at: 5) -> ModelRunnerOutput:
        """What a model would answer; `token`: of a request and a place in its outputs."""
        names = list(plan.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = self.scheduler.requests[name]
            is_whole = request.num_computed_tokens >= request.num_tokens
            sampled.append([token(name, request.num_output_tokens)] if is_whole else [])
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)

    def step(self) -> int:
        """One step; its CPU time in ns, without that of the model."""
        start = clock()
        plan = self.scheduler.schedule()
        spent = clock() - start
        answer = self.run(plan)
        start = clock()
        self.scheduler.update_from_output(plan, answer)
        return spent + clock() - start


def steady(running: int, block: int, tokens: int) -> Bench:
    """Everybody decodes and nobody leaves, as in `benchmarks/scheduler.py`."""
    blocks = (running + running // 8 + 64) * (-(-tokens // block) + 1)
    bench = Bench(running, block, blocks, 11 * running + 512, cache=False)
    rng = Random(1)
    for number in range(running):
        bench.add(f"r{number}", range(rng.randint(1, 300)), tokens - 310)
    while len(bench.scheduler.running) < running or any(r.is_prefill_chunk for r in bench.scheduler.running):
        bench.step()
    return bench


class Churn(Bench):
    """Closed loop: each end brings an arrival; output lengths are geometric with mean OUTPUT."""

    def __init__(self, running: int, block: int, tokens: int) -> None:
        blocks = (running + running // 8 + 64) * (-(-tokens // block) + 1)
        super().__init__(running, block, blocks, 11 * running + 512, cache=True, chunk=512)
        self.rng, self.number = Random(2), 0
        self.arrive(running + 8)
        for _ in range(3 * OUTPUT):
            self.step()

    def arrive(self, count: int) -> None:
        """New prompts that nobody shares."""
        for _ in range(count):
            self.number += 1
            start = self.number * 4000
            length = 3 + min(2000, int(self.rng.expovariate(1 / OUTPUT)))
            self.add(f"r{self.number}", range(start, start + PROMPT), length)

    def step(self) -> int:
        spent = super().step()
        self.arrive(self.scheduler.max_num_running_reqs + 8 - len(self.scheduler.requests))
        return spent


class Arrival(NamedTuple):
    """A request of a world, and the step before which it arrives."""

    step: int
    name: str
    prompt: list[int]
    outputs: int
    tokens: list[int]  # what it samples, as far as it gets; 0 ends it


def decide(world: dict[str, Any]) -> list[dict[str, int]]:
    """Tokens that each step computes, by request."""
    bench = Bench(world["running"], world["block"], world["blocks"], world["budget"], cache=True)
    arrivals = [Arrival(*entry) for entry in world["arrivals"]]
    tokens = {arrival.name: arrival.tokens for arrival in arrivals}
    steps = []
    for step in range(world["steps"]):
        for arrival in arrivals:
            if arrival.step == step:
                bench.add(arrival.name, arrival.prompt, arrival.outputs)
        plan = bench.scheduler.schedule()
        steps.append(dict(plan.num_scheduled_tokens))
        bench.scheduler.update_from_output(plan, bench.run(plan, lambda name, at: tokens[name][at]))
    return steps


def main() -> None:
    """Serve windows of steps until standard input ends, or play worlds."""
    if sys.argv[1] == "decide":
        print(json.dumps([decide(world) for world in json.load(sys.stdin)]))
        return
    kind, running, block, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    bench = Churn(running, block, tokens) if kind == "churn" else steady(running, block, tokens)
    from benchmarks.scheduler_serve import serve  # `decide` is run without the folder above on the path

    serve(bench.step)


if __name__ == "__main__":
    main()
