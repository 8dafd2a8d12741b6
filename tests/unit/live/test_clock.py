from headway.live.clock import Clock


def test_time_never_goes_back() -> None:
    clock = Clock()
    stamps = [clock.now_ns() for _ in range(1000)]
    assert stamps == sorted(stamps)


def test_a_child_with_the_parents_start_counts_from_the_same_moment() -> None:
    parent = Clock()
    before = parent.now_ns()
    child = Clock(parent.start_ns).now_ns()
    assert before <= child <= parent.now_ns()
