"""Fronts that share a budget never use more of it together than there is, whatever becomes of their messages."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.ids import NodeId, RequestId, TenantId
from headway.core.messages import Share, Stated
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.sched.admission.purse import Purse
from headway.sched.admission.quota import Quota
from headway.sched.admission.shares import IN_FLIGHT, TTL_NS, Shares, Wholes

TENANTS = (TenantId("a"), TenantId("b"))
RATE, BURST, TOKENS, REQUEST_MAX = 50.0, 40, 6000, 600


class World:
    """A lender, its fronts, and messages under way: in order per pair, late, or lost."""

    def __init__(self, in_flight: int, concurrent: int, fronts: int = 3) -> None:
        quotas = {
            "a": Quota(concurrent=concurrent, requests_per_s=RATE, requests_burst=BURST),
            "b": Quota(tokens_per_min=TOKENS),
        }
        self.wholes = Wholes(in_flight, quotas, None, fronts)
        self.concurrent = concurrent
        self.shares = Shares(self.wholes)
        self.purses = [Purse(self.wholes) for _ in range(fronts)]
        self.up: list[deque[Stated]] = [deque() for _ in range(fronts)]
        self.down: list[deque[Share]] = [deque() for _ in range(fronts)]
        self.parked: list[dict[RequestId, tuple[int, TenantId, int]]] = [{} for _ in range(fronts)]
        self.open: list[dict[RequestId, int]] = [{} for _ in range(fronts)]
        self.now_ns: Ns = 0
        self.number = self.refused = 0
        self.taken: dict[TenantId, list[tuple[Ns, int]]] = {tenant: [] for tenant in TENANTS}

    def arrive(self, front: int, tenant: TenantId, tokens: int) -> None:
        self.number += 1
        self._consider(front, RequestId(f"req-{self.number}"), tenant, tokens)

    def _consider(self, front: int, request: RequestId, tenant: TenantId, tokens: int) -> None:
        purse = self.purses[front]
        wants = purse.asks(tenant, tokens, self.now_ns)
        if wants:
            stated = purse.state(wants, self.now_ns)
            self.up[front].append(stated)
            self.parked[front][request] = stated.number, tenant, tokens
            return
        if purse.take(request, tenant, tokens, 0, self.now_ns) is None:
            self.open[front][request] = tokens
            self.taken[tenant].append((self.now_ns, tokens))
        else:
            self.refused += 1

    def end(self, front: int, used: float) -> None:
        if self.open[front]:
            request, tokens = next(iter(self.open[front].items()))
            del self.open[front][request]
            self.purses[front].settle(request, round(tokens * used), 0, self.now_ns)

    def state(self, front: int) -> None:
        self.up[front].append(self.purses[front].state((), self.now_ns))

    def carry_up(self, front: int, *, is_lost: bool = False) -> None:
        if self.up[front]:
            message = self.up[front].popleft()
            share = None if is_lost else self.shares.stated(NodeId(f"front-{front}"), message, self.now_ns)
            if share is not None:
                self.down[front].append(share)

    def carry_down(self, front: int, *, is_lost: bool = False) -> None:
        if self.down[front]:
            share = self.down[front].popleft()
            if is_lost:
                return
            self.purses[front].heard(share, self.now_ns)
            for request, (number, tenant, tokens) in list(self.parked[front].items()):
                if number <= share.answers:
                    del self.parked[front][request]
                    self._consider(front, request, tenant, tokens)

    def kill(self, front: int) -> None:
        """Its process dies, and what it had open; another of its name starts."""
        self.shares.lost(NodeId(f"front-{front}"))
        self.purses[front] = Purse(self.wholes)
        for held in (self.up, self.down):
            held[front].clear()
        self.parked[front].clear()
        self.open[front].clear()

    def check(self) -> None:
        self.shares.check()
        assert sum(len(held) for held in self.open) <= self.wholes.in_flight_max
        assert sum(purse.open(TENANTS[0]) for purse in self.purses) <= self.concurrent
        for purse, held in zip(self.purses, self.open, strict=True):
            assert sum(purse.open(tenant) for tenant in TENANTS) == len(held)

    def check_rates(self) -> None:
        """In every window: what refills in it, a burst, and what fronts may keep for the next request."""
        spare = self.wholes.fronts * (self.wholes.spare("requests/a") + 1)
        stamps = [at_ns for at_ns, _ in self.taken[TENANTS[0]]]
        for first, start_ns in enumerate(stamps):
            for last in range(first, len(stamps)):
                most = BURST + spare + RATE * (stamps[last] - start_ns) / NS_PER_S
                assert last - first + 1 <= most + 1

    def settle_down(self) -> None:
        """Everything ends and every message comes, until nothing is lent. Who still waits for an answer has given up:
        here no time passes with a message, so two fronts could ask for what the other just got for ever."""
        for parked in self.parked:
            parked.clear()
        for _ in range(6):
            for front in range(len(self.purses)):
                while self.up[front] or self.down[front]:
                    self.carry_up(front)
                    self.carry_down(front)
                while self.open[front]:
                    self.end(front, 1.0)
                self.state(front)
            self.now_ns += TTL_NS
        for front in range(len(self.purses)):
            while self.up[front]:
                self.carry_up(front)


FRONT = st.integers(0, 2)
STEP = st.one_of(
    st.tuples(st.just("arrive"), FRONT, st.sampled_from(TENANTS), st.integers(0, REQUEST_MAX)),
    st.tuples(st.just("end"), FRONT, st.floats(0, 1)),
    st.tuples(st.just("state"), FRONT),
    st.tuples(st.just("up"), FRONT, st.booleans()),
    st.tuples(st.just("down"), FRONT, st.booleans()),
    st.tuples(st.just("pass"), st.integers(0, 2 * TTL_NS)),
    st.tuples(st.just("kill"), FRONT),
)


@given(st.integers(1, 200), st.integers(1, 60), st.lists(STEP, max_size=120), st.booleans())
@settings(max_examples=300, deadline=None)
def test_what_is_used_stays_below_the_whole_whatever_is_lost_or_late(
    in_flight: int, concurrent: int, steps: list[tuple[object, ...]], is_lossy: bool
) -> None:
    world = World(in_flight, concurrent)
    for step in steps:
        match step:
            case ("arrive", int(front), str(tenant), int(tokens)):
                world.arrive(front, TenantId(tenant), tokens)
            case ("end", int(front), float(used)):
                world.end(front, used)
            case ("state", int(front)):
                world.state(front)
            case ("up", int(front), bool(is_lost)):
                world.carry_up(front, is_lost=is_lost and is_lossy)
            case ("down", int(front), bool(is_lost)):
                world.carry_down(front, is_lost=is_lost and is_lossy)
            case ("pass", int(span_ns)):
                world.now_ns += span_ns
            case ("kill", int(front)):
                world.kill(front)
            case _:
                raise AssertionError(step)
        world.check()
    world.check_rates()
    world.settle_down()
    for key in (IN_FLIGHT, "concurrent/a"):
        assert world.shares.lent(key, world.now_ns) == 0, "what nobody uses is lent for ever"


# SPEC A8
def test_a_flood_at_one_front_of_three_gets_the_quota_and_not_more() -> None:
    world = World(in_flight=1000, concurrent=30)
    for turn in range(2000):  # a millisecond each; every request is open for 50 ms
        for _ in range(4):
            world.arrive(turn % 3 if turn % 2 else 0, TENANTS[0], 0)
        for front in range(3):
            world.carry_up(front)
            world.carry_down(front)
            if turn % 50 == 0:
                while world.open[front]:
                    world.end(front, 1.0)
            if turn % 500 == 0:
                world.state(front)
        world.now_ns += NS_PER_MS
        world.check()
    taken = len(world.taken[TENANTS[0]])
    spare = 3 * (world.wholes.spare("requests/a") + 1)
    assert RATE * 2 <= taken <= BURST + RATE * 2 + spare, "all of the quota is used, whichever front is asked"
    world.check_rates()
    assert world.refused > 5000


# SPEC A8: a share that nobody renews ends
def test_a_front_that_hears_nothing_falls_to_its_floor() -> None:
    world = World(in_flight=120, concurrent=30)
    floor = world.wholes.floor(IN_FLIGHT)
    for _ in range(40):
        world.arrive(0, TENANTS[1], 0)
        world.carry_up(0)
        world.carry_down(0)
    assert len(world.open[0]) == 40 > floor
    while world.open[0]:
        world.end(0, 1.0)
    world.now_ns += TTL_NS
    for _ in range(40):
        world.arrive(0, TENANTS[1], 0)
    assert len(world.open[0]) == floor == 10


def test_what_a_lost_front_held_comes_back_when_its_share_has_expired() -> None:
    world = World(in_flight=1000, concurrent=2)
    for front in (0, 0, 1):
        world.arrive(front, TENANTS[0], 0)
        world.carry_up(front)
        world.carry_down(front)
    assert [len(held) for held in world.open] == [2, 0, 0]
    world.kill(0)
    world.now_ns += TTL_NS - 1
    world.arrive(1, TENANTS[0], 0)
    world.carry_up(1)
    world.carry_down(1)
    assert len(world.open[1]) == 0
    world.now_ns += NS_PER_S
    world.arrive(1, TENANTS[0], 0)
    world.carry_up(1)
    world.carry_down(1)
    assert len(world.open[1]) == 1
