"""Evidence of our own server as a log of requests: when one replica had a request, and its first and last token."""

from collections import Counter
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.core.units import Ns, ns_from_ms
from headway.workload.request_logs import Logged

LOST_MAX: Final = 0.05  # share of requests that may have ended otherwise: they took part in steps, and nobody says how
CACHED_MAX: Final = 0.05  # share of prompt tokens that a cache may have held
_BEFORE: Final = ("input_transfer", "admission", "model_load", "gateway_queue")
_RUNNING: Final = ("engine_queue", "prefill", "decode", "preempted", "recompute")


class EvidenceLog(msgspec.Struct, frozen=True):
    """What one replica served. `left_out`: requests of others, and those that did not end well."""

    replica: str
    requests: list[Logged]
    left_out: int


class _Line(msgspec.Struct, frozen=True):
    request: str
    outcome: str
    segments: dict[str, float]
    output_tokens: int
    cached_tokens: int
    started_ms: float
    replica: str | None
    prompt_tokens: int | None


_line: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


def read_evidence(content: bytes, name: str) -> EvidenceLog:
    """Read JSON lines of `headway trace export --format jsonl`; of the replica that served most.

    Raises ConfigError with file and line, and where too much of what the engine did is not in it: requests that failed,
    prompts that a cache held, requests that moved.
    """
    lines = []
    for number, text in enumerate(content.splitlines(), 1):
        if text.strip():
            try:
                lines.append(_line.decode(text))
            except msgspec.DecodeError as error:
                raise ConfigError(f"{name}, line {number}: {error}") from None
    served = Counter(line.replica for line in lines if line.replica is not None)
    if not served:
        raise ConfigError(f"{name} has no request that a replica served")
    replica = max(served, key=lambda one: (served[one], one))
    mine = [line for line in lines if line.replica == replica]
    _check(mine, name, replica)
    usable = [line for line in mine if line.outcome == "ok" and line.output_tokens]
    found = sorted((_logged(line) for line in usable), key=lambda one: (one.queued_ns, one.id))
    origin = found[0].queued_ns
    shifted = [
        msgspec.structs.replace(
            one,
            queued_ns=one.queued_ns - origin,
            first_token_ns=one.first_token_ns - origin,
            last_token_ns=one.last_token_ns - origin,
        )
        for one in found
    ]
    return EvidenceLog(replica, shifted, len(lines) - len(shifted))


def _check(mine: list[_Line], name: str, replica: str) -> None:
    steps = "export the steps with `headway trace export --format steps`"
    lost = sum(line.outcome != "ok" or not line.output_tokens or not line.prompt_tokens for line in mine)
    if lost > LOST_MAX * len(mine):
        raise ConfigError(f"{name}: {lost} of {len(mine)} requests of {replica} did not end well; {steps}")
    cached, prompts = sum(line.cached_tokens for line in mine), sum(line.prompt_tokens or 0 for line in mine)
    if cached > CACHED_MAX * prompts:
        raise ConfigError(f"{name}: {cached} of {prompts} prompt tokens of {replica} came from its cache; {steps}")
    if any(line.segments.get("handoff") for line in mine):
        raise ConfigError(f"{name}: requests of {replica} were handed over by others; {steps}")


def _logged(line: _Line) -> Logged:
    """The engine's part: what lies before and after it on the way is none of its time."""

    def spent(*names: str) -> Ns:
        return sum(ns_from_ms(line.segments.get(segment, 0.0)) for segment in names)

    queued_ns = ns_from_ms(line.started_ms) + spent(*_BEFORE)
    first_ns = queued_ns + spent("engine_queue", "prefill")
    last_ns = queued_ns + spent(*_RUNNING)
    return Logged(line.request, line.prompt_tokens or 1, line.output_tokens, queued_ns, first_ns, last_ns)
