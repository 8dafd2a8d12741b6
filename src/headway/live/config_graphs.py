"""Brings the graph mode down to what the engine's attention can capture, and says so (SPEC E1)."""

import msgspec

from headway.core.graphs import possible
from headway.engines.llm.captures import captures_on
from headway.live.spec import BucketSettings, EngineSettings


def capturable(buckets: BucketSettings, engine: EngineSettings) -> tuple[BucketSettings, str | None]:
    """Buckets with a mode that can run, and why it is not the one that was asked for. `engine.device` is resolved.

    Where nothing can be captured, sizes that were given for graphs would cost padding and bring nothing: they go too.
    """
    on_device = engine.kind == "torch" and engine.device == "cuda"
    mode = possible(buckets.graph_mode, captures_on("cuda" if on_device else "cpu"))
    if mode == buckets.graph_mode:
        return buckets, None
    where = f"engine.kind = {engine.kind} with engine.device = {engine.device}"
    if mode == "none":
        words = f"{buckets.graph_mode} was asked for, {where} captures no graphs; steps are not padded either"
        return msgspec.structs.replace(buckets, graph_mode="none", rows=()), words
    words = f"{buckets.graph_mode} was asked for, attention of {where} is captured in steps of decodes only"
    return msgspec.structs.replace(buckets, graph_mode=mode), words
