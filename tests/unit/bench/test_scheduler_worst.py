"""The benchmark that tells what the slowest steps of the scheduler did."""

from benchmarks.scheduler_worst import Watched, least


# SPEC B9
def test_replays_do_the_same_and_tell_all_that_changed() -> None:
    told = []
    for _ in range(2):
        load = Watched(32, 16)
        machine = load.system.machine
        assert machine is not None
        pool, evicted, last = machine.state.pool, machine.state.pool.evicted, machine.state.pool.index._last
        rows = [load.row() for _ in range(200)]
        assert sum(row["evicted"] for row in rows) == pool.evicted - evicted
        assert sum(row["entered"] for row in rows) == pool.index._last - last
        assert sum(row["ended"] for row in rows) > 10
        told.append([{name: row[name] for name in row if name not in ("ns", "gc_us", "faults")} for row in rows])
    assert told[0] == told[1]


def test_of_each_step_the_quickest_replay_counts() -> None:
    slow, quick = {"step": 1, "ns": 9}, {"step": 1, "ns": 3}
    assert least([[slow, quick], [quick, slow]]) == [quick, quick]
