"""One engine step as it is written out: its shape and its times, so that what steps cost can be fitted to it."""

import msgspec

from headway.core.units import Ns


class StepRecord(msgspec.Struct, frozen=True, gc=False):
    """A line of `headway trace export --format steps`. Times count from the start of the run."""

    replica: str
    step: int
    kind: str
    decodes: int
    kv_tokens: int  # context of the decodes
    prefill_tokens: int
    prefill_pairs: int  # query-key pairs of the chunks
    chunks: int
    chunk_context: int  # sum over chunks of start + count
    launched_ns: Ns  # the executor took the plan
    started_ns: Ns  # the device began
    done_ns: Ns  # results on the host
    plan_ns: Ns = 0  # host time of the scheduler
    host_ns: Ns = 0  # host time inside the executor
    idle_gap_ns: Ns = 0  # device idle before this step although its work was runnable
    overlapped_ns: Ns = 0  # part of plan_ns and host_ns during which the device ran
