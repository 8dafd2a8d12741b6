"""What earlier runs of this user left in the state folder, for `headway doctor`."""

import contextlib
import json
import sqlite3


def paused() -> tuple[str, ...]:
    """As the job table of the default place says, where there is one."""
    from headway.live.jobs_settings import state_folder

    path = state_folder() / "jobs.db"
    if not path.exists():
        return ()
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as table:
            return tuple(row[0] for row in table.execute("SELECT model FROM queue_holds ORDER BY model"))
    except sqlite3.Error:  # of an earlier version, or no table of ours: nothing is paused there
        return ()


def long_steps() -> tuple[str, ...]:
    """As the last `headway serve` that had a diffusion model told."""
    from headway.live.jobs_settings import LONG_STEPS, state_folder

    try:
        said = json.loads((state_folder() / LONG_STEPS).read_bytes())
    except (OSError, ValueError):
        return ()
    return tuple(str(story) for story in said)
