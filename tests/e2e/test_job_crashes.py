"""kill -9 of gateway and workers at random moments: every accepted job completes once (SPEC H3, ComfyUI#1977)."""

from pathlib import Path

from tests.e2e.job_chaos import Storm, ride


# SPEC H3
def test_twenty_kills_lose_double_and_change_no_job(tmp_path: Path) -> None:
    tally = ride(tmp_path, Storm(kills=20, seed=1, gateway_share=0.3, jobs_per_kill=1, pause_s=0.6))
    tally.check()
    assert tally.gateway_kills + tally.worker_kills == 20
    assert tally.resumed > 0, "no job went on from a checkpoint: the kills prove nothing"
