"""kill -9 of gateway and workers at random moments: every accepted job completes once (SPEC H3, ComfyUI#1977)."""

import contextlib
import sqlite3
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.e2e.job_chaos import Storm, ride, site, undisturbed
from tests.e2e.serving import until


# SPEC H3
def test_twenty_kills_lose_double_and_change_no_job(tmp_path: Path) -> None:
    tally = ride(tmp_path, Storm(kills=20, seed=1, gateway_share=0.3, jobs_per_kill=1, pause_s=0.6))
    tally.check()
    assert tally.gateway_kills + tally.worker_kills == 20
    assert tally.resumed > 0, "no job went on from a checkpoint: the kills prove nothing"


@pytest.mark.slow  # every kill costs an import of torch and diffusers
@pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed: no real engine to kill")
def test_ten_kills_of_a_real_engine_lose_double_and_change_no_picture(tmp_path: Path) -> None:
    # SPEC H3, F6
    storm = Storm(10, 3, "torch", gateway_share=0.3, jobs_per_kill=1, steps=40, pause_s=3.0)
    tally = ride(tmp_path, storm)
    tally.check()
    assert tally.gateway_kills + tally.worker_kills == 10


# SPEC H3
def test_a_gateway_that_ends_in_order_loses_no_step_of_its_jobs(tmp_path: Path) -> None:
    storm = Storm(kills=0, seed=1, steps=60, step_ms=50.0, failure_every_s=1e9)  # no checkpoint is ever due
    with site(tmp_path, storm) as running:
        job = running.call(running.path, running.body("key", 1))["id"]
        until(lambda: running.view(job)["progress"] >= 20, "a fifth of it is done")
        seen = running.view(job)["progress"]
        running.restart()
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as table:
            ((begun,),) = table.execute("SELECT begun FROM jobs WHERE id = ?", (job,))
        assert 100 * begun >= 60 * seen
        until(lambda: running.view(job)["status"] == "completed", lambda: str(running.view(job)))
        assert running.view(job)["attempts"] == 2
        running.stop()
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as table:
            ((body, key),) = table.execute(
                "SELECT body, key FROM job_inputs JOIN job_outputs USING (job) WHERE kind = 'video'"
            )
        assert (tmp_path / "objects" / key).read_bytes() == undisturbed(body)
