"""Several gateways on one job table: whatever happens in whatever order, every job is completed once (SPEC H3)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.job_world import JobWorld, job_row

from headway.core.jobs import Outcome
from headway.core.units import NS_PER_S
from headway.sched.jobs.params import BackoffParams, CheckpointParams, JobParams


# SPEC H3
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), gateways=st.integers(1, 3), jobs=st.integers(1, 6))
def test_every_job_is_completed_exactly_once_through_crashes(seed: int, gateways: int, jobs: int) -> None:
    """Crashes of gateways, a table that does not answer (and did it, or not), failing attempts, unfit checkpoints."""
    rng = random.Random(seed)
    params = JobParams(
        running_max=3,
        lease_s=4.0,
        poll_s=2.0,
        attempts_max=1000,
        backoff=BackoffParams(0.5, 2.0),
        checkpoint=CheckpointParams(failure_every_s=rng.choice((50.0, 5000.0)), save_ms=20.0),
    )
    world = JobWorld(rng, gateways, params)
    faults = (Outcome("broken", "engine_lost"), Outcome("refused", "queue_full", retry_after_ns=10**9))
    world.outcome = lambda _: rng.choice((*faults, Outcome("completed"), Outcome("completed")))
    world.fits = lambda _: rng.random() < 0.8
    for number in range(jobs):
        world.store(job_row(number, urgency=rng.randrange(2)))
    for _ in range(600):
        dice = rng.random()
        gateway = rng.choice(world.gateways)
        if dice < 0.01:
            world.crash(gateway)
        elif dice < 0.03 and gateway.to_table:
            world.serve(gateway, is_answered=False, is_done=rng.random() < 0.5)
        else:
            world.turn()
    world.settle(world.is_over)
    assert {stored.state for stored in world.table.rows.values()} == {"completed"}
    assert {stored.completions for stored in world.table.rows.values()} == {1}


def disturb(world: JobWorld, turns: int, dies: float) -> None:
    """Gateways stand still for longer than their leases and come back, the table does not answer; some die."""
    rng = world.rng
    for _ in range(turns):
        dice = rng.random()
        gateway = rng.choice(world.gateways)
        if dice < 0.02:
            world.still ^= {gateway.name}
        elif dice < 0.03:
            world.now_ns += rng.randrange(10) * NS_PER_S
        elif dice < 0.05 and gateway.to_table:
            world.serve(gateway, is_answered=False, is_done=rng.random() < 0.5)
        elif 0.05 <= dice < 0.05 + dies:
            world.still.discard(gateway.name)
            world.crash(gateway)
        else:
            world.turn()
    world.still.clear()


# SPEC H3
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), gateways=st.integers(1, 3), jobs=st.integers(1, 5))
def test_no_job_is_lost_because_gateways_are_slow(seed: int, gateways: int, jobs: int) -> None:
    """Late heartbeats, claims and answers in any order, or lost ones, with leases that run out all the time: nothing
    failed, so every job is completed, and once."""
    params = JobParams(running_max=3, lease_s=3.0, poll_s=1.0, attempts_max=gateways)
    world = JobWorld(random.Random(seed), gateways, params)
    for number in range(jobs):
        world.store(job_row(number))
    disturb(world, 800, dies=0.0)
    world.settle(world.is_over)
    assert {(stored.state, stored.completions) for stored in world.table.rows.values()} == {("completed", 1)}


# SPEC H3
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), gateways=st.integers(1, 3), jobs=st.integers(1, 5))
def test_a_job_is_lost_for_attempts_that_failed_alone(seed: int, gateways: int, jobs: int) -> None:
    """`JobWorld` counts attempts that broke or whose gateway died, and looks at every end as `lost`."""
    rng = random.Random(seed)
    params = JobParams(running_max=3, lease_s=3.0, poll_s=1.0, attempts_max=3, backoff=BackoffParams(0.5, 2.0))
    world = JobWorld(rng, gateways, params)
    world.outcome = lambda _: rng.choice((Outcome("broken", "engine_lost"), Outcome("completed")))
    for number in range(jobs):
        world.store(job_row(number))
    disturb(world, 800, dies=0.005)
    world.settle(world.is_over)
    ends = {(stored.state, stored.completions) for stored in world.table.rows.values()}
    assert ends <= {("completed", 1), ("lost", 0)}


# SPEC H3
def test_twenty_jobs_before_a_table_that_takes_longer_than_a_third_of_a_lease_are_completed() -> None:
    """`lease_s = 2` on a loaded machine: every write takes a quarter of a second, so a round of heartbeats takes five,
    and every lease runs out. No gateway is dead, so no attempt fails."""
    params = JobParams(running_max=20, lease_s=2.0, progress_s=0.6, poll_s=1.0)
    world = JobWorld(random.Random(1), 1, params)
    (gateway,) = world.gateways
    for number in range(20):
        world.store(job_row(number))
    for tick in range(4_000):
        if world.is_over():
            break
        world.now_ns += NS_PER_S // 4
        world.fire(gateway)
        if gateway.to_table:
            world.serve(gateway)
        while gateway.inbox:
            world.feed(gateway)
        if gateway.works and tick % 2:
            world.work(gateway)
    ends = {(stored.state, stored.completions) for stored in world.table.rows.values()}
    assert ends == {("completed", 1)}
    assert {stored.row.attempt for stored in world.table.rows.values()} == {1}  # nothing was done twice


# SPEC H3
@pytest.mark.parametrize(("table_s", "lease_s", "most"), [(0.25, 2.0, 20), (0.5, 2.0, 30), (1.0, 15.0, 20)])
def test_two_gateways_before_a_slow_table_do_little_twice(table_s: float, lease_s: float, most: int) -> None:
    """Twenty jobs, each statement takes `table_s` of its gateway's table thread: heartbeats that wait behind claims and
    ends (269 attempts by 400 s in the second row, and no job done), or a look for webhooks that is asked again before
    it is answered (none done in the last row), let leases run out. `most`: attempts of all jobs."""
    params = JobParams(running_max=20, lease_s=lease_s, progress_s=min(1.0, 0.3 * lease_s), poll_s=1.0)
    world = JobWorld(random.Random(1), 2, params)
    world.are_leases_whole = True
    for number in range(20):
        world.store(job_row(number))
    for tick in range(1, 8_000):
        world.now_ns += NS_PER_S // 20
        for gateway in world.gateways:
            world.fire(gateway)
            if gateway.to_table and tick % round(20 * table_s) == 0:
                world.serve(gateway)
            while gateway.inbox:
                world.feed(gateway)
            if gateway.works and tick % 10 == 0:
                world.work(gateway)
        if world.is_over():
            break
    ends = [(stored.state, stored.completions) for stored in world.table.rows.values()]
    assert ends == [("completed", 1)] * 20
    assert sum(stored.row.attempt for stored in world.table.rows.values()) <= most


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_cancelled_job_stops_and_the_others_do_not(seed: int) -> None:
    """InvokeAI#6049, #6089, #7414: cancelling one never touches another; who runs it learns by its next write."""
    rng = random.Random(seed)
    world = JobWorld(rng, 2)
    for number in range(5):
        world.store(job_row(number))
    gone = job_row(rng.randrange(5)).job
    for _ in range(rng.randrange(200)):
        world.turn()
    was_over = world.table.cancel(gone) is None
    world.settle(lambda: world.is_over() and not any(gateway.works for gateway in world.gateways))
    states = {job: stored.state for job, stored in world.table.rows.items()}
    assert states.pop(gone) == ("completed" if was_over else "cancelled")
    assert set(states.values()) == {"completed"}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_paused_job_goes_on_from_its_checkpoint_when_it_is_resumed(seed: int) -> None:
    """Whoever runs it saves it where it is: nobody tells that gateway but the table."""
    rng = random.Random(seed)
    world = JobWorld(rng, 2, JobParams(running_max=3, lease_s=3600.0, poll_s=2.0))  # nobody is slower than its lease
    for number in range(3):
        world.store(job_row(number))
    held = job_row(0).job
    for _ in range(rng.randrange(150)):
        world.turn()
    if world.table.pause(held, world.now_ns) is None:
        return  # it was completed before
    stored = world.table.rows[held]
    runs = [gateway.works[held].done for gateway in world.gateways if held in gateway.works]
    world.settle(lambda: stored.owner is None)
    if stored.state == "completed":
        return  # its last step was under way
    assert stored.row.begun >= max(runs, default=0)  # whoever ran it has saved it where it was
    world.settle(lambda: all(s.state == "completed" for s in world.table.rows.values() if s is not stored))
    assert stored.state in ("queued", "preempted")
    world.table.resume(held)
    world.settle(world.is_over)
    assert (stored.state, stored.completions) == ("completed", 1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_held_queue_begins_nothing_and_completes_everything_when_it_is_released(seed: int) -> None:
    """ComfyUI#1032. A node learns of it by claims that are lost, and of its end by its next look at the table."""
    rng = random.Random(seed)
    world = JobWorld(rng, 2)
    for number in range(4):
        world.store(job_row(number))
    for _ in range(rng.randrange(120)):
        world.turn()
    world.table.is_held = True
    attempts = {job: stored.row.attempt for job, stored in world.table.rows.items()}
    for _ in range(300):
        world.turn()
    assert {job: stored.row.attempt for job, stored in world.table.rows.items()} == attempts
    world.table.is_held = False
    world.settle(world.is_over)
    assert {stored.completions for stored in world.table.rows.values()} == {1}
