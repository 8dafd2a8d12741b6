"""The log on stderr: text for people, or one JSON object per line for machines. What clients send is in neither."""

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Literal

import msgspec

LogFormat = Literal["text", "json"]
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# What a line may carry beside its event, given as `extra`.
FIELDS: Final = (
    "origin", "request", "tenant", "replica", "trace_id", "outcome", "e2e_ms", "ttft_ms", "output_tokens",
)  # fmt: skip
# Their messages quote the value they failed on, which may be a prompt or a key; type and place say enough.
_QUOTING: Final = (ValueError, LookupError, TypeError)

_Caught = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class TextLines(logging.Formatter):
    """Text, with tracebacks that do not quote values."""

    def __init__(self, text: str = TEXT) -> None:
        super().__init__(text)

    def formatException(self, ei: _Caught) -> str:  # noqa: N802  the library's name
        """Return the traceback, causes first, without messages that quote values."""
        stories: list[str] = []
        error = ei[1]
        while error is not None:
            said = "" if isinstance(error, _QUOTING) else f": {error}"
            frames = "".join(traceback.format_tb(error.__traceback__))
            stories.append(f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}{said}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n\n".join(reversed(stories))


class JsonLines(TextLines):
    """One object per line: `time` (UTC), `level`, `event`, `logger`, the fields that apply, `error`: a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        line |= {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(log_format: LogFormat, level: int) -> None:
    """Send the log of this process, Python's warnings included, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # of every broken form; its client is told
    logging.captureWarnings(log_format == "json")
