"""One engine alone: the LLM machine that serves, fed with the arrivals of a log, on a device that a step model times.

No nodes, links and clients: what an engine's own log tells begins when the engine saw the request. Steps follow each
other as `SimExecutor` has it: planning on the host, then the device in order.
"""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from headway.core.events import StepDone
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.plans import StepTiming
from headway.core.ports import ModelLimits
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import Ns
from headway.cost.fitted import Ranges
from headway.cost.llm import StepShape
from headway.cost.step import shape_of
from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice
from headway.workload.request_logs import EngineArguments, Logged

_NO_TIMING = StepTiming(0, 0, 0)
_ANY_NUMBER = 1_000_000


class Served(msgspec.Struct, gc=False):
    """When a request of the log would have said its first and last token."""

    first_token_ns: Ns = 0
    last_token_ns: Ns = 0


class EngineModel(msgspec.Struct, frozen=True):
    """What times the steps of a replayed engine."""

    step_ns: Callable[[StepShape], float]
    host_ns: Callable[[int], float]
    kv_tokens: int


def vllm_scheduler(arguments: EngineArguments) -> LlmParams:
    """The scheduler of vLLM V1 in our words: first come first served, running before waiting, whole step for a prompt,
    blocks as they are needed, and recompute of the latest when there are none; two steps in flight."""
    return LlmParams(
        max_seqs=arguments.max_num_seqs,
        step_tokens=arguments.max_num_batched_tokens,
        chunk=PolicyChoice("constant", {"tokens": arguments.max_num_batched_tokens}),
        order=PolicyChoice("fcfs"),
        prefix_cache=False,  # a log has no tokens to find prefixes in
        async_depth=2,
        preemptions_max=_ANY_NUMBER,
        pool="counting",
        decisions=False,
    )


def alone(params: LlmParams) -> LlmParams:
    """A scheduler as one engine's log is replayed with: no content to cache or to swap, and nobody reads decisions."""
    return msgspec.structs.replace(params, prefix_cache=False, swap=False, pool="counting", decisions=False)


def requests_of(log: Sequence[Logged], model: str) -> list[LlmRequest]:
    """The requests of a log, with prompts of the right length."""
    return [
        LlmRequest(
            id=RequestId(one.id),
            tenant=TenantId("log"),
            model=ModelId(model),
            prompt=(1,) * one.prompt_tokens,
            sampling=SamplingParams(max_tokens=one.output_tokens, ignore_eos=True),
            arrived_ns=one.queued_ns,
        )
        for one in log
    ]


class EngineReplay:
    """Runs a log through the scheduler, as often as a search wants."""

    def __init__(self, requests: Sequence[LlmRequest], params: LlmParams, block_size: int) -> None:
        """`requests` in the order of their arrival."""
        self._requests, self._params, self._block_size = requests, params, block_size
        self._longest = max(len(one.prompt) + one.max_tokens for one in requests)
        self.preemptions = 0
        self.ranges = Ranges(0, 0, 0, 0)  # of the last run

    def _limits(self, kv_tokens: int) -> ModelLimits:
        blocks = kv_tokens // self._block_size
        return ModelLimits("log", 2, self._longest + 1, self._block_size, blocks, 0, 0, 1, (), "", "")

    def run(self, model: EngineModel) -> list[Served]:
        """Return what every request would have seen. Raises RequestError for one that `kv_tokens` cannot hold."""
        machine = LlmMachine(self._params, self._limits(model.kv_tokens), None)
        requests, served = self._requests, [Served() for _ in self._requests]
        waiting, numbers, place = deque(range(len(requests))), dict[int, int](), 0
        opened: deque[tuple[Ns, int, tuple[int, ...]]] = deque()  # end, step, sequences with their first token
        host_free_ns = device_free_ns = 0
        decodes_max = kv_max = prefill_max = pairs_max = 0
        while waiting or opened:
            if opened and (not waiting or opened[0][0] <= requests[waiting[0]].arrived_ns):
                now_ns, step, firsts = opened.popleft()
                for seq in firsts:
                    served[numbers[seq]].first_token_ns = now_ns
                for ended in machine.step_done(StepDone(now_ns, "", step, (), (), _NO_TIMING)):
                    served[numbers[ended.seq]].last_token_ns = now_ns
            else:
                place = waiting.popleft()
                now_ns = requests[place].arrived_ns
                numbers[machine.add(requests[place], (), now_ns)] = place
            if waiting and requests[waiting[0]].arrived_ns <= now_ns:
                continue  # arrived at once: the next plan sees them all
            while len(opened) < self._params.async_depth and (plan := machine.plan(now_ns)) is not None:
                shape = shape_of(plan)
                decodes_max, kv_max = max(decodes_max, shape.decodes), max(kv_max, shape.kv_tokens)
                prefill_max, pairs_max = max(prefill_max, shape.prefill_tokens), max(pairs_max, shape.prefill_pairs)
                host_free_ns = max(now_ns, host_free_ns) + round(model.host_ns(shape.decodes + shape.chunks))
                device_free_ns = max(host_free_ns, device_free_ns) + max(1, round(model.step_ns(shape)))
                opened.append((device_free_ns, plan.step, tuple(c.seq for c in plan.chunks if c.samples)))
        self.ranges = Ranges(decodes_max, kv_max, prefill_max, pairs_max)
        self.preemptions = machine.state.preemptions
        return served
