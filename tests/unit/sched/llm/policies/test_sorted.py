"""The sorted sequences that orders share."""

from random import Random
from weakref import ref

from tests.property.llm_world import make_request
from tests.property.test_step_instructions import Count

from headway.sched.llm.policies._sorted import SortedSeqs
from headway.sched.llm.policies._static import Victims
from headway.sched.llm.sequence import Seq


def seq(number: int, urgency: int = 0, arrived_ns: int = 0) -> Seq:
    """A sequence."""
    request = make_request(number, (1,), urgency=urgency, arrived_ns=arrived_ns)
    return Seq(number, request, 4, 1, b"")


def test_it_agrees_with_sorting_whatever_leaves_in_between() -> None:
    rng, found = Random(1), SortedSeqs()
    live: dict[int, tuple[tuple[int, int], Seq]] = {}
    for number in range(4000):
        if live and rng.random() < 0.48:
            gone = rng.choice(list(live))
            found.discard(live.pop(gone)[1])
        else:
            one = seq(number)
            key = (rng.randint(0, 50), number)
            live[number] = (key, one)
            found.push(one, key)
        order = [one for _key, one in sorted(live.values(), key=lambda entry: entry[0])]
        assert found.peek() is (order[0] if order else None)
        assert [one for _key, one in found.first(5)] == order[:5]
        assert len(found) == len(live)


# SPEC B9: a heap with stale entries is swept, which took 10 ms of one step in 200 at 4,096 running
def test_no_push_and_no_discard_costs_more_than_another() -> None:
    found, count = SortedSeqs(), Count()
    costs = set()
    for number in range(3000):
        one = seq(number)
        before = count.value
        with count.running():
            found.push(one, (number,))
            if number % 2:
                found.discard(one)
        costs.add((number % 2, count.value - before))
    assert len(costs) == 2


def test_a_sequence_that_comes_back_counts_with_its_new_key() -> None:
    found, a, b = SortedSeqs(), seq(1), seq(2)
    found.push(a, (1,))
    found.push(b, (2,))
    found.discard(a)
    found.push(a, (3,))
    assert [one for _key, one in found.first(9)] == [b, a]


# SPEC B4: least urgent, then latest arrival
def test_victims_are_the_least_urgent_latest_first_and_nobody_else() -> None:
    victims = Victims()
    for number, (urgency, arrived) in enumerate([(1, 5), (0, 3), (0, 9), (2, 1), (0, 4)]):
        victims.add(seq(number, urgency, arrived))
    assert [one.id for one in victims.first()] == [2, 4, 1]


def test_at_most_eight_victims_are_looked_at() -> None:
    victims = Victims()
    for number in range(30):
        victims.add(seq(number, 0, number))
    assert [one.id for one in victims.first()] == list(range(29, 21, -1))


# A heap whose stale entries named sequences freed hundreds of prompts at once: 25 ms at 1,024 running.
def test_one_that_left_is_not_kept_alive() -> None:
    class Watched(Seq):
        """One that can be watched."""

    found, one = SortedSeqs(), Watched(1, make_request(1, (1,)), 4, 1, b"")
    found.push(seq(0), (0,))
    found.push(one, (1,))
    found.discard(one)
    watch = ref(one)
    del one
    assert watch() is None
