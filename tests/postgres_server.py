"""A PostgreSQL server of this machine's binaries in a folder of its own, on a Unix socket only."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SUPERUSER = "tests"


def _account() -> str | None:
    """The server refuses root, so that root runs it as somebody else."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    pytest.skip("PostgreSQL refuses root, and there is no account postgres or nobody to run it as")


class Server:
    """One that runs; it may be stopped at once, as by a crash, and started again."""

    def __init__(self, folder: str, initdb: str, pg_ctl: str, account: str | None) -> None:
        self._folder, self._pg_ctl, self._account = folder, pg_ctl, account
        self._data = str(Path(folder) / "data")
        self.url = f"postgresql://{SUPERUSER}@/postgres?host={folder}"
        self._run(initdb, "-D", self._data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        """Return when it answers."""
        options = f"-k {self._folder} -c listen_addresses= -c fsync=off"
        # Its log goes to a file: a server that holds our pipes would keep `_run` waiting for ever.
        self._control("start", "-l", str(Path(self._folder) / "log"), "-o", options)

    def stop(self) -> None:
        """Connections are cut, nothing is finished."""
        self._control("stop", "-m", "immediate")

    def _control(self, verb: str, *more: str) -> None:
        self._run(self._pg_ctl, "-D", self._data, "-w", *more, verb)

    def _run(self, *command: str) -> None:
        env = {**os.environ, "LC_ALL": "C", "HOME": self._folder}
        done = subprocess.run(command, user=self._account, env=env, cwd=self._folder, capture_output=True, check=False)
        assert done.returncode == 0, (done.stderr + done.stdout).decode()


@contextmanager
def server() -> Iterator[Server]:
    """A fresh one with an empty database `postgres`; skips where there are no binaries."""
    initdb, pg_ctl = shutil.which("initdb"), shutil.which("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("initdb and pg_ctl are not here: no PostgreSQL server to test against")
    account = _account()
    with tempfile.TemporaryDirectory(prefix="hw-pg-") as folder:
        if account is not None:
            shutil.chown(folder, account)
        running = Server(folder, initdb, pg_ctl, account)
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def postgres() -> Iterator[str]:
    """Its URL alone."""
    with server() as running:
        yield running.url
