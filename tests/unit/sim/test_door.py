from headway.sim.door import Door


def test_a_request_arrives_one_way_later_and_passes_the_cpu() -> None:
    assert Door(way_ns=30, cpu_ns=5).enter(100) == (130, 135)


def test_requests_pass_the_cpu_one_after_the_other() -> None:
    door = Door(cpu_ns=5)
    assert [door.enter(sent_ns)[1] for sent_ns in (0, 1, 2, 100)] == [5, 10, 15, 105]


def test_without_a_way_and_without_cpu_it_is_there_at_once() -> None:
    assert Door().enter(7) == (7, 7)


def test_several_processes_take_as_many_at_once() -> None:
    door = Door(cpu_ns=5, processes=2)
    assert [door.enter(0)[1] for _ in range(5)] == [5, 5, 10, 10, 15]
