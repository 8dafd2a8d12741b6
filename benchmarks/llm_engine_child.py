"""One system of `llm_engine.py` in a process of its own, with a model loaded once.

usage: python benchmarks/llm_engine_child.py headway|vllm|transformers FOLDER --threads N --dtype float32|bfloat16

Reads one JSON request per line and answers each with one JSON line of seconds. `{"concurrent": n, "prompt": p,
"steps": s}`: n prompts of p random tokens start together; prefill lasts until all have a first token, decode from there
over s steps of all. `{"concurrent": n, "prompt": p, "newcomer": q}`: while n decode, one more of q tokens arrives; its
TTFT, and the longest wait of the others for a token meanwhile.

It runs under the Python of its system: nothing else is imported before the system is known.
"""

import argparse
import json
import os
import random
import sys
import time
from typing import Any, NamedTuple, Protocol

LENGTH = 4608


class Clock(NamedTuple):
    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Clock":
        return cls(time.perf_counter(), time.process_time())

    def since(self, name: str) -> dict[str, float]:
        return {f"{name}_wall": time.perf_counter() - self.wall, f"{name}_cpu": time.process_time() - self.cpu}


class Stepper(Protocol):
    """An engine with its own scheduler, driven step by step; greedy, no end of sequence, no prefix cache."""

    about: str

    def add(self, prompt: list[int], tokens: int) -> str: ...

    def step(self) -> list[str]:
        """Who got a token; empty before anybody did."""
        ...

    def drop(self, name: str) -> None: ...


class Headway:
    """The scheduler of a replica with its defaults (chunks of 512), and the engine, in one thread."""

    def __init__(self, folder: str, threads: int, dtype: str) -> None:
        from pathlib import Path

        from headway.core.ids import ModelId, RequestId, TenantId
        from headway.core.request import LlmRequest, SamplingParams
        from headway.cost.llm import StepCost, StepCostParams
        from headway.engines.llm.loading import EngineSettings
        from headway.engines.llm.start import start_engine
        from headway.sched.llm.machine import LlmMachine
        from headway.sched.llm.params import LlmParams

        settings = EngineSettings(
            folder=Path(folder),
            model="default",
            cache=Path(folder).parent.parent,
            kv_blocks=1024,
            max_model_len=LENGTH,
            threads=threads,
            dtype=dtype,  # type: ignore[arg-type]  # checked by argparse
        )
        self._engine = start_engine(settings, "cpu", time.perf_counter_ns)
        params = LlmParams(async_depth=1, prefix_cache=False)
        self._machine = LlmMachine(params, self._engine.limits, StepCost(StepCostParams(kv_bytes_per_block=1 << 16)))
        self._request = lambda name, prompt, tokens: LlmRequest(
            RequestId(name),
            TenantId("t"),
            ModelId("default"),
            tuple(prompt),
            SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True),
            0,
        )
        self._names: dict[int, str] = {}
        self.about = self._engine.description

    def add(self, prompt: list[int], tokens: int) -> str:
        name = f"req-{len(self._names)}"
        self._names[self._machine.add(self._request(name, prompt, tokens), (), time.perf_counter_ns())] = name
        return name

    def step(self) -> list[str]:
        plan = self._machine.plan(time.perf_counter_ns())
        if plan is None:
            return []
        done = self._engine.run(plan)
        self._machine.step_done(done)
        return [self._names[seq] for seq in done.seqs]

    def drop(self, name: str) -> None:
        from headway.core.request import FinishReason

        for seq, known in self._names.items():
            if known == name:
                self._machine.stop(seq, FinishReason.CANCELLED, time.perf_counter_ns())


class Vllm:
    """`LLM` with its own scheduler in this process; started by llm_engine.py with its preloads, compiled."""

    def __init__(self, folder: str, threads: int, dtype: str, eager: bool) -> None:
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        llm = LLM(
            folder,
            dtype=dtype,
            max_model_len=LENGTH,
            max_num_seqs=64,
            enable_prefix_caching=False,
            enforce_eager=eager,
            seed=0,
        )
        self._engine, self._count, self._seen = llm.llm_engine, 0, {}
        self.about = f"vLLM, {dtype}, {'eager' if eager else 'compiled'}, {threads} thread(s)"

    def add(self, prompt: list[int], tokens: int) -> str:
        name, self._count = f"req-{self._count}", self._count + 1
        params = self._params(max_tokens=tokens, temperature=0, ignore_eos=True)
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name

    def step(self) -> list[str]:
        got = []
        for output in self._engine.step():
            count = len(output.outputs[0].token_ids)
            if count > self._seen.get(output.request_id, 0):
                got.append(output.request_id)
            self._seen[output.request_id] = count
        return got

    def drop(self, name: str) -> None:
        self._engine.abort_request([name])


class Transformers:
    """The forward pass of `generate` with its default cache and attention, without the rest of `generate`."""

    def __init__(self, folder: str, threads: int, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.about = f"transformers, {dtype}, sdpa, {threads} thread(s)"

    def measure(self, concurrent: int, prompt: int, steps: int) -> dict[str, float]:
        torch = self._torch
        ids = torch.tensor([tokens(prompt) for _ in range(concurrent)])
        with torch.inference_mode():
            began = Clock.now()
            out = self._model(ids, use_cache=True, logits_to_keep=1)
            last = out.logits[:, -1].argmax(-1, keepdim=True)
            found = began.since("prefill")
            began = Clock.now()
            for _ in range(steps):
                out = self._model(last, past_key_values=out.past_key_values, use_cache=True)
                last = out.logits[:, -1].argmax(-1, keepdim=True)
        return found | began.since("decode")


def tokens(count: int) -> list[int]:
    return [random.randint(100, 40_000) for _ in range(count)]


def measure(engine: Stepper, concurrent: int, prompt: int, steps: int) -> dict[str, float]:
    names = [engine.add(tokens(prompt), steps + 64) for _ in range(concurrent)]
    waiting, began = set(names), Clock.now()
    while waiting:
        waiting.difference_update(engine.step())
    found = began.since("prefill")
    began, counted = Clock.now(), 0
    while counted < steps * concurrent:
        counted += len(engine.step())
    found |= began.since("decode")
    end(engine, names)
    return found | {"tokens": counted}


def newcomer(engine: Stepper, concurrent: int, prompt: int, arriving: int) -> dict[str, float]:
    names = [engine.add(tokens(prompt), 256) for _ in range(concurrent)]
    waiting = set(names)
    while waiting:
        waiting.difference_update(engine.step())
    engine.step()
    began = last = Clock.now()
    mine, longest = engine.add(tokens(arriving), 8), 0.0
    while True:
        got = engine.step()
        if names[0] in got:
            longest, last = max(longest, time.perf_counter() - last.wall), Clock.now()
        if mine in got:
            break
    found = began.since("ttft") | {"wait_wall": longest}
    end(engine, [*names, mine])
    return found


def end(engine: Stepper, names: list[str]) -> None:
    for name in names:
        engine.drop(name)
    engine.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=("headway", "vllm", "vllm-eager", "transformers"))
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    given = parser.parse_args()
    # Libraries print to stdout; answers go where nothing else goes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    system: Any
    if given.system == "headway":
        system = Headway(given.folder, given.threads, given.dtype)
    elif given.system == "transformers":
        system = Transformers(given.folder, given.threads, given.dtype)
    else:
        system = Vllm(given.folder, given.threads, given.dtype, given.system == "vllm-eager")
    print(json.dumps({"about": system.about}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "newcomer" in asked:
            found = newcomer(system, asked["concurrent"], asked["prompt"], asked["newcomer"])
        elif given.system == "transformers":
            found = system.measure(asked["concurrent"], asked["prompt"], asked["steps"])
        else:
            found = measure(system, asked["concurrent"], asked["prompt"], asked["steps"])
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
