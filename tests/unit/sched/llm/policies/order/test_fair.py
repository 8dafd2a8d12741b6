"""Weighted tenant service counters (SPEC A10, B3, B8)."""

from tests.property.llm_world import make_limits
from tests.property.rig import Rig

from headway.sched.llm.policies.order.fair import Fair


def rig(**settings: object) -> Rig:
    """Two seats."""
    options = {"order": "fair", "max_seqs": 2, "async_depth": 2, "limits": make_limits(kv_blocks=400), **settings}
    return Rig(**options)  # type: ignore[arg-type]


def served(r: Rig, tenant: str) -> float:
    """Weighted tokens so far."""
    order = r.machine.state.order
    assert isinstance(order, Fair)
    return order.served(tenant, r.machine.state.step + 1) / 720_720


# SPEC B3: one user floods, another asks once (vllm#3096)
def test_a_flood_does_not_delay_another_tenant() -> None:
    r = rig()
    for _ in range(40):
        r.new(8, 8, tenant="flood")
    for _ in range(12):
        r.step()
    guest = r.new(8, 8, tenant="guest")
    before = len(r.admitted())
    while guest not in r.admitted():
        r.step()
    assert len(r.admitted()) - before <= 2
    r.drain()


# SPEC B8: the counters of backlogged tenants stay within two requests of each other
def test_backlogged_tenants_get_equal_service() -> None:
    r = rig()
    for number in range(60):
        r.new(4 if number % 2 else 12, 6, tenant="a" if number % 2 else "b")
    gaps = []
    for _ in range(100):
        r.step()
        gaps.append(abs(served(r, "a") - served(r, "b")))
    largest = 12 + 2 * 6
    assert max(gaps) <= 2 * largest
    r.drain()


def test_twice_the_weight_gets_twice_the_service() -> None:
    r = rig()
    for number in range(120):
        heavy = number % 2 == 0
        r.new(8, 8, tenant="heavy" if heavy else "light", weight=2 if heavy else 1)
    for _ in range(150):
        r.step()
    count = {"heavy": 0, "light": 0}
    for seq in r.ended:
        count[r.requests[seq].tenant] += 1
    assert count["heavy"] > 20
    assert abs(count["heavy"] - 2 * count["light"]) <= 4
    r.drain()


def test_a_tenant_back_from_idle_gets_no_credit_for_absence() -> None:
    r = rig()
    r.new(4, 2, tenant="back")
    for _ in range(10):
        r.new(8, 8, tenant="busy")
    for _ in range(40):
        r.step()
    r.new(4, 2, tenant="back")
    assert served(r, "back") >= served(r, "busy")
    r.drain()


def test_a_preemption_is_no_absence() -> None:
    r = rig(limits=make_limits(kv_blocks=12), max_seqs=4, preemptions_max=4)
    r.new(8, 24, tenant="a")
    r.new(8, 24, tenant="b")
    before = served(r, "a")
    while not r.machine.counters()["preemptions"]:
        r.step()
    victims = {record.request for record in r.decisions("preempt")}
    assert victims
    assert served(r, "a") - before <= 8 + 2 * 24
    r.drain()


def test_an_idle_machine_serves_whoever_is_there() -> None:
    r = rig()
    alone = [r.new(8, 4, tenant="a") for _ in range(5)]
    r.drain()
    assert r.admitted() == alone


def test_forgets_idle_tenants_that_are_as_good_as_new() -> None:
    r = rig()
    keep = r.new(8, 40, tenant="busy")
    order = r.machine.state.order
    assert isinstance(order, Fair)
    for number in range(1200):
        r.stop(r.new(4, 2, tenant=f"once-{number}"))
    assert len(order._tenants) < 1100
    assert keep in r.machine.state.seqs
    r.drain()
