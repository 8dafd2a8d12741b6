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


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database `postgres`; skips where there are no binaries."""
    initdb, pg_ctl = shutil.which("initdb"), shutil.which("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("initdb and pg_ctl are not here: no PostgreSQL server to test against")
    account = _account()
    with tempfile.TemporaryDirectory(prefix="hw-pg-") as folder:
        if account is not None:
            shutil.chown(folder, account)
        data = str(Path(folder) / "data")
        env = {**os.environ, "LC_ALL": "C", "HOME": folder}

        def run(*command: str) -> None:
            done = subprocess.run(
                command, user=account, env=env, cwd=folder, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr + done.stdout

        run(initdb, "-D", data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        # Its log goes to a file: a server that holds our pipes would keep `run` waiting for ever.
        run(pg_ctl, "-D", data, "-w", "-l", str(Path(folder) / "log"), "-o", options, "start")
        try:
            yield f"postgresql://{SUPERUSER}@/postgres?host={folder}"
        finally:
            run(pg_ctl, "-D", data, "-w", "-m", "immediate", "stop")
