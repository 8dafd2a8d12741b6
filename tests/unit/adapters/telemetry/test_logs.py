import json
import logging

import pytest

from headway.adapters.telemetry.logs import JsonLines, TextLines, configure
from headway.core.errors import InvariantError

CANARY = "canary-prompt-or-key"


def logged(formatter: logging.Formatter, error: BaseException | None = None, **fields: object) -> str:
    record = logging.LogRecord("headway.live.run", logging.WARNING, "run.py", 1, "lost %d of %s", (2, "x"), None)
    record.created = 0.25
    record.__dict__.update(fields)
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    return formatter.format(record)


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_a_line_is_one_object_with_level_time_and_event() -> None:
    # SPEC M2
    line = logged(JsonLines())
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "warning",
        "event": "lost 2 of x",
        "logger": "headway.live.run",
    }


def test_ids_are_fields_of_their_own() -> None:
    # SPEC M2
    fields = {"request": "req-1", "replica": "rep-0", "trace_id": "ab" * 16, "ttft_ms": None}
    found = json.loads(logged(JsonLines(), **fields))
    assert {name: found.get(name) for name in fields} == fields
    assert "ttft_ms" not in found  # it does not apply


def test_what_is_not_a_field_of_the_log_is_left_out() -> None:
    assert CANARY not in logged(JsonLines(), prompt=CANARY)


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
@pytest.mark.parametrize("error", [ValueError(CANARY), KeyError(CANARY), TypeError(CANARY)])
def test_a_traceback_does_not_quote_the_value_that_it_failed_on(
    formatter: logging.Formatter, error: BaseException
) -> None:
    # SPEC M5
    line = logged(formatter, raised(RuntimeError("the cause is told"), raised(error)))
    assert CANARY not in line
    assert type(error).__name__ in line
    assert "the cause is told" in line
    assert "in raised" in line


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_our_own_errors_tell_their_story(formatter: logging.Formatter) -> None:
    line = logged(formatter, raised(InvariantError("request req-17 has two owners")))
    assert "InvariantError: request req-17 has two owners" in line


def test_an_error_stays_inside_its_line() -> None:
    line = logged(JsonLines(), raised(InvariantError("two owners")))
    assert "\n" not in line
    assert json.loads(line)["error"].startswith("Traceback")


def test_a_form_that_a_client_breaks_writes_no_line() -> None:
    configure("text", logging.WARNING)
    assert not logging.getLogger("python_multipart.multipart").isEnabledFor(logging.WARNING)
