"""Errors by blame. Each names what failed, the value seen, the limit and what to do, with ids.

ConfigError    the operator's file or flags; exit code 2
RequestError   the caller; a 4xx
CapacityError  nobody's fault now; a 429 or 503
EngineError    ours; a 5xx
InvariantError a bug: crash in tests and in simulation
"""


class HeadwayError(Exception):
    """Root of every error that Headway raises on purpose."""


class ConfigError(HeadwayError):
    """A configuration that cannot work; the message names the keys."""


class RequestError(HeadwayError):
    """The caller's request is wrong. `status`, `code` and `param` go into OpenAI's error object."""

    def __init__(self, message: str, *, code: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class CapacityError(HeadwayError):
    """No room now. `retry_after_ms` is what the caller is told; None when waiting cannot help."""

    def __init__(
        self, message: str, *, status: int = 429, code: str = "queue_full", retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after_ms = status, code, retry_after_ms


class EngineError(HeadwayError):
    """An engine failed; `code` is one of CONTRACT's (`engine_lost`, `no_replica`)."""

    def __init__(self, message: str, *, status: int = 502, code: str = "engine_lost") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class InvariantError(HeadwayError):
    """A rule of the ring is broken. Never caught inside the ring."""
