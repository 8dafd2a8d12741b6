"""What is told of a database that does not answer."""

import json
import logging
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, OperationalError

from headway.adapters.gateway.errors import error_body, error_headers, error_out
from headway.adapters.jobs.connect import Database
from headway.core.errors import CapacityError, RequestError

REASON = "connection failed: 127.0.0.1, port 54399, user hw"


def away(_: Connection) -> None:
    raise OperationalError("SELECT 1", None, sqlite3.OperationalError(REASON))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def test_of_a_database_that_is_away_clients_are_told_that_alone(url: str, caplog: pytest.LogCaptureFixture) -> None:
    # SPEC H4, M1
    caplog.set_level(logging.INFO)
    database = Database(url)

    def lost(_: Connection) -> None:
        raise OperationalError("SELECT 1", None, OSError(REASON), connection_invalidated=True)

    for work in (away, lost):
        with pytest.raises(CapacityError) as caught:
            database.run(work)
        error = error_out(caught.value)
        assert json.loads(error_body(error))["error"] == {
            "message": "The job table does not answer; try again.",
            "type": "server_error",
            "param": None,
            "code": "no_job_table",
        }
        assert dict(error_headers(error)) == {
            b"retry-after-ms": b"1000",
            b"retry-after": b"1",
            b"x-should-retry": b"true",
        }
    assert database.outage.is_on
    assert database.run(lambda connection: connection.closed) is False
    assert not database.outage.is_on
    told = [record.getMessage() for record in caplog.records if record.name.endswith("jobs.connect")]
    assert told == [f"the job table {url} does not answer: {REASON}", f"the job table {url} answers again"]
    database.close()


def test_of_a_value_that_it_refuses_the_sender_is_told_no_words_of_the_driver(url: str) -> None:
    database = Database(url)

    def refused(_: Connection) -> None:
        raise DataError("SELECT 1", None, Exception("psycopg: unnamed portal parameter $1"))

    with pytest.raises(RequestError, match="cannot hold a value") as caught:
        database.run(refused)
    assert "psycopg" not in str(caught.value)
    database.close()
