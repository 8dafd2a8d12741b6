"""Opening the database: SQLite in WAL mode by default, PostgreSQL by URL; the schema is brought up to date."""

import fcntl
import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, Protocol, TypeVar

import alembic.command
import alembic.config
import alembic.util
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from headway.adapters.telemetry.outages import Outage
from headway.core.errors import CapacityError, ConfigError, RequestError

log = logging.getLogger(__name__)

T = TypeVar("T")
_BUSY_MS: Final = 10_000
_TRIES: Final = 3  # of a transaction that PostgreSQL ended for a deadlock
_AWAY_RETRY_MS: Final = 1000  # a database that starts again is back within seconds
_LOCK_OF_MIGRATION: Final = 0x48656164  # of PostgreSQL, where several gateways start at once


class _SqliteCursor(Protocol):
    """What is used of `sqlite3.Cursor`."""

    def execute(self, statement: str, /) -> object: ...

    def close(self) -> None: ...


class _SqliteConnection(Protocol):
    """What is used of `sqlite3.Connection`."""

    isolation_level: str | None

    def cursor(self) -> _SqliteCursor: ...


class Database:
    """One database, used from one thread."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError for what cannot be opened."""
        self._lock: IO[str] | None = None
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise ConfigError(f"jobs.url: {error}; write sqlite:///PATH or postgresql://USER@HOST/NAME") from error
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        if parsed.get_backend_name() == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        elif not self.is_sqlite:
            raise ConfigError(f"jobs.url = {parsed.get_backend_name()}://...: sqlite and postgresql are supported")
        self.name = parsed.render_as_string(hide_password=True)
        self.outage = Outage(f"the job table {self.name}", log)
        if self.is_sqlite and parsed.database:
            self._hold(Path(parsed.database))
        try:
            self.engine = create_engine(parsed, pool_size=1, max_overflow=0, pool_pre_ping=not self.is_sqlite)
            if self.is_sqlite:
                _as_sqlite(self.engine)
            upgrade(self.engine)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            self.close()
            raise ConfigError(f"jobs.url = {self.name}: {error}; pip install -e '.[postgres]' in the clone") from error
        except alembic.util.CommandError as error:
            self.close()
            raise ConfigError(
                f"jobs.url = {self.name} was brought up to date by another version of Headway: {error}; start that, "
                "or name another table"
            ) from error
        except SQLAlchemyError as error:
            self.close()
            why = error.orig if isinstance(error, DBAPIError) else error
            raise ConfigError(
                f"jobs.url = {self.name} cannot be opened: {why}; restore the table, or name another one"
            ) from error

    def _hold(self, path: Path) -> None:
        """SQLite is for one gateway: what is claimed when it starts was claimed by one that is gone."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds what clients asked for
            # Open until the process ends: the kernel releases it however that happens.
            self._lock = path.with_name(path.name + ".lock").open("w")
        except OSError as error:
            raise ConfigError(f"jobs.url = {self.name} cannot be written: {error}; name another file") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(
                f"jobs.url = {self.name} is in use by another gateway; give this one another file by "
                f"`--set jobs.url=sqlite:///{path.absolute().parent}-2/jobs.db` or, without jobs.url, "
                f"HEADWAY_STATE={path.absolute().parent}-2; or both PostgreSQL"
            ) from error

    def run(self, work: Callable[[Connection], T]) -> T:
        """In one transaction, which is tried again where it and another gateway's waited for each other. Raises
        CapacityError where the database does not answer, RequestError for a value that it cannot hold."""
        for _ in range(_TRIES - 1):
            try:
                return self._once(work)
            except DBAPIError as error:
                if type(error.orig).__name__ != "DeadlockDetected":
                    raise
        return self._once(work)

    def _once(self, work: Callable[[Connection], T]) -> T:
        try:
            with self.engine.begin() as connection:
                done = work(connection)
            self.outage.answered()
            return done
        except DataError as error:  # PostgreSQL takes no NUL in texts, and looks at the length of columns
            message = "The job table cannot hold a value of the request: a text that has a NUL or is too long."
            raise RequestError(message, code="invalid_value") from error
        except DBAPIError as error:
            if not (error.connection_invalidated or _is_away(error)):
                raise
            self.outage.failed(str(error.orig))
            raise CapacityError(
                "The job table does not answer; try again.",
                status=503,
                code="no_job_table",
                retry_after_ms=_AWAY_RETRY_MS,
            ) from error

    def close(self) -> None:
        """Let others have it."""
        if hasattr(self, "engine"):
            self.engine.dispose()
        if self._lock is not None:
            self._lock.close()


def plain(words: str) -> str:
    """As every database holds it: PostgreSQL takes no NUL, and a job whose end cannot be written would never end."""
    return words.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _is_away(error: DBAPIError) -> bool:
    """It is not there, is full or locked, or its file is damaged (what `sqlite3` calls a DatabaseError itself)."""
    return type(error.orig).__name__ in ("OperationalError", "InterfaceError", "DatabaseError")


def _as_sqlite(engine: Engine) -> None:
    def connected(connection: _SqliteConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself: `begun` does
        cursor = connection.cursor()
        for pragma in (f"busy_timeout={_BUSY_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # not upgraded later, where it could fail as busy

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)


def upgrade(engine: Engine, version: str = "head") -> None:
    """Bring the schema to that version, the newest one by default. Raises SQLAlchemyError."""
    _migrate(engine, lambda config: alembic.command.upgrade(config, version))


def downgrade(engine: Engine, version: str) -> None:
    """Take the schema back, for an earlier version of Headway, to 0007 at most; what it cannot hold is lost. Raises
    SQLAlchemyError."""
    _migrate(engine, lambda config: alembic.command.downgrade(config, version))


def _migrate(engine: Engine, run: Callable[[alembic.config.Config], None]) -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_OF_MIGRATION})
        config.attributes["connection"] = connection
        run(config)
