"""Reads per-request logs of engines: when a request was queued, first scheduled, and said its first and last token.

The format is that of LLMServingSim's vLLM benches: `requests.jsonl`, with `meta.json` (engine arguments) beside it.
"""

import msgspec

from headway.core.errors import ConfigError
from headway.core.units import Ns, ns_from_s


class Logged(msgspec.Struct, frozen=True, gc=False):
    """One request, in nanoseconds since the first was queued. Queued: the engine saw it."""

    id: str
    prompt_tokens: int
    output_tokens: int
    queued_ns: Ns
    first_token_ns: Ns
    last_token_ns: Ns

    @property
    def ttft_ns(self) -> Ns:
        """From queued to the first token."""
        return self.first_token_ns - self.queued_ns

    @property
    def e2e_ns(self) -> Ns:
        """From queued to the last token."""
        return self.last_token_ns - self.queued_ns


class _Line(msgspec.Struct, frozen=True):
    request_id: str
    input_toks: int
    output_toks: int
    queued_ts: float
    first_token_ts: float
    last_token_ts: float


class EngineArguments(msgspec.Struct, frozen=True):
    """What vLLM was started with, as far as its scheduler and its layout are concerned."""

    model: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    dtype: str = "auto"


class LogMeta(msgspec.Struct, frozen=True):
    """`meta.json` beside the log."""

    vllm_version: str
    engine_kwargs: EngineArguments


_line: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


def read_request_log(content: bytes, name: str) -> list[Logged]:
    """Read a log, in the order in which requests were queued. Raises ConfigError with file and line."""
    lines = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = _line.decode(line)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from None
        if found.output_toks < 1 or not found.queued_ts <= found.first_token_ts <= found.last_token_ts:
            raise ConfigError(
                f"{name}, line {number}: {found.request_id} has no first and last token after its arrival"
            )
        lines.append(found)
    if not lines:
        raise ConfigError(f"{name} is empty")
    lines.sort(key=lambda one: one.queued_ts)  # stable: equal stamps keep the order of the file
    origin = lines[0].queued_ts
    return [
        Logged(
            one.request_id,
            one.input_toks,
            one.output_toks,
            ns_from_s(one.queued_ts - origin),
            ns_from_s(one.first_token_ts - origin),
            ns_from_s(one.last_token_ts - origin),
        )
        for one in lines
    ]


def read_log_meta(content: bytes, name: str) -> LogMeta:
    """Read `meta.json`. Raises ConfigError."""
    try:
        return msgspec.json.decode(content, type=LogMeta)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
