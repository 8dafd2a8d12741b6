"""Turns a request into a sequence, or refuses what could never fit."""

from array import array

from headway.core.errors import RequestError
from headway.core.request import LlmRequest
from headway.sched.llm.sequence import Seq, blocks_for
from headway.sched.llm.state import MachineState


def new_seq(m: MachineState, number: int, request: LlmRequest, emitted: tuple[int, ...]) -> Seq:
    """Raises RequestError `unservable` for a request that this replica can never finish."""
    prompt, limits = len(request.prompt), m.limits
    limit = min(request.sampling.max_tokens, limits.max_model_len - prompt)
    if prompt < 1:
        raise _unservable(f"request {request.id} has an empty prompt", "prompt")
    if request.sampling.max_tokens < 1:
        raise _unservable(f"request {request.id} asks for {request.sampling.max_tokens} tokens", "max_tokens")
    if limit < 1:
        raise _unservable(
            f"request {request.id} has {prompt} prompt tokens, {limits.model} holds {limits.max_model_len} with at "
            "least one to generate; shorten the prompt",
            "prompt",
        )
    if len(emitted) >= limit:
        raise _unservable(f"request {request.id} has emitted {len(emitted)} of {limit} tokens already", "max_tokens")
    worst = blocks_for(prompt + limit - 1, m.block_size)
    if worst > limits.kv_blocks:
        raise _unservable(
            f"request {request.id} needs {worst} KV blocks, replica {m.replica} has {limits.kv_blocks}; "
            "lower max_tokens or raise kv_blocks",
            "max_tokens",
        )
    cacheable = m.params.prefix_cache and bool(request.cache_root)
    full = prompt // m.block_size
    if cacheable and len(request.block_hashes) != full:
        raise RequestError(
            f"request {request.id} has {len(request.block_hashes)} block hashes for {full} full blocks of "
            f"{m.block_size} tokens; hash with the replica's block size",
            code="unservable",
            param="block_hashes",
        )
    raw = array("I", request.prompt).tobytes() if cacheable else b""
    hashes = list(request.block_hashes) if cacheable else []
    root = request.cache_root
    return Seq(number, request, limit, worst, raw, emitted, len(emitted), hashes=hashes, parent=root)


def _unservable(message: str, param: str) -> RequestError:
    return RequestError(message, code="unservable", param=param)
