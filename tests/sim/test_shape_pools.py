"""Replicas that move between shape pools (SPEC F5): the mix flips from pictures to videos and back, on four devices."""

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace
from tests.sim.studios import FRONT_CONFIG, Studio
from tests.sim.test_diffusion_pools import COST, MODEL, PIXELS, VIDEO, pool

from headway.core.effects import Record
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import DiffusionRequest
from headway.core.units import NS_PER_S, ns_from_s
from headway.cost.coldstart import ColdStartParams
from headway.cost.diffusion import left_ns
from headway.sched.fleet.shape_pools import ShapePoolParams
from headway.sched.nodes import ControlNode
from headway.sched.registry import PolicyChoice
from headway.sim.fleet import CONTROL
from headway.sim.pools import PoolParams, PoolShape
from headway.workload.spec import PictureShape

SPAN_S = 900  # of each mix
PICTURE = PictureShape(height=480, width=832, steps=160)  # 4 s: enough of them to queue, few enough to simulate
FRONT = replace(FRONT_CONFIG, admission=PolicyChoice("open"))
MOVES = ShapePoolParams(cold_start_s=26.0)
SHAPES = (PoolShape(480, 832), PoolShape(480, 832, 81))


def pools() -> tuple[PoolParams, PoolParams]:
    """Three replicas for pictures and one for videos: right for the first mix."""
    more = {"shapes": SHAPES, "start": ColdStartParams(has_compiled=True)}  # 10 s, and 16 s of captures
    short = replace(pool("fifo", "short", 3, pixels_max=PIXELS), **more)
    return short, replace(pool("fifo", "long", 1, pixels_min=PIXELS + 1), **more)


def asked(name: str, shape: PictureShape, at_ns: int) -> DiffusionRequest:
    size = shape.steps or 0, shape.height, shape.width
    return DiffusionRequest(RequestId(name), TenantId("t"), ModelId(MODEL), *size, 1, at_ns, frames=shape.frames)


def stream(kind: str, shape: PictureShape, busy: float, began_s: float) -> list[DiffusionRequest]:
    """Poisson arrivals over a span that keep so many replicas busy."""
    each_s = left_ns(COST, asked("r", shape, 0)) / NS_PER_S
    rng = np.random.default_rng(round(began_s) + len(kind))
    times = began_s + np.cumsum(rng.exponential(each_s / busy, round(2 * SPAN_S * busy / each_s) + 50))
    times = times[times < began_s + SPAN_S]
    return [asked(f"{kind}-{began_s:.0f}-{place}", shape, ns_from_s(at)) for place, at in enumerate(times)]


def flips() -> list[DiffusionRequest]:
    """Pictures for two replicas and videos for half of one; then the other way round; then again as at first."""
    wanted: list[DiffusionRequest] = []
    for place, (pictures, videos) in enumerate([(2.0, 0.5), (0.5, 2.0), (2.0, 0.5)]):
        wanted += stream("picture", PICTURE, pictures, place * SPAN_S)
        wanted += stream("video", VIDEO, videos, place * SPAN_S)
    return sorted(wanted, key=lambda request: request.arrived_ns)


def waits(ran: Studio, kind: str) -> np.ndarray:
    found = [record for record in ran.evidence() if record.request.startswith(kind)]
    assert all(record.outcome == "ok" for record in found)
    return np.array([record.queue_wait_ms for record in found]) / 1e3


@pytest.fixture(scope="module")
def ran() -> dict[str, Studio]:
    wanted = flips()
    kinds = {"fixed": None, "moving": MOVES}
    found = {name: Studio(*pools(), front=FRONT, log=True, shapes=shapes).run(wanted) for name, shapes in kinds.items()}
    assert all(len(studio.evidence()) == len(wanted) for studio in found.values())  # nothing is stranded
    return found


def test_when_the_mix_flips_replicas_follow_it_and_no_request_is_stranded(ran: dict[str, Studio]) -> None:  # SPEC F5
    fixed, moving = waits(ran["fixed"], "video"), waits(ran["moving"], "video")
    assert moving.mean() < 0.25 * fixed.mean()
    assert np.quantile(moving, 0.99) < 0.35 * np.quantile(fixed, 0.99)
    pictures = waits(ran["moving"], "picture")
    assert np.quantile(pictures, 0.99) < 60  # of four seconds each, when the third mix begins
    shapes = control(ran["moving"]).shapes
    assert shapes is not None
    assert shapes.moved >= 3  # there, and back


def test_every_move_is_recorded_and_none_swings_back_at_once(ran: dict[str, Studio]) -> None:  # SPEC F5, L-3
    told = [
        effect.entry
        for turn in ran["moving"].sim.log.of(CONTROL)
        for effect in turn.effects
        if isinstance(effect, Record) and effect.entry.kind == "reshape"  # type: ignore[union-attr]  # control keeps no evidence
    ]
    shapes = control(ran["moving"]).shapes
    assert shapes is not None
    assert len(told) == shapes.moved <= 12  # in 45 minutes
    assert all("preparing it takes" in one.reason for one in told)  # type: ignore[union-attr]  # as above
    by_replica: dict[str, list[int]] = {}
    for one in told:
        by_replica.setdefault(one.chosen, []).append(one.at_ns)  # type: ignore[union-attr]  # as above
    gaps = [later - sooner for times in by_replica.values() for sooner, later in pairwise(times)]
    assert all(gap > 2 * 26 * NS_PER_S for gap in gaps)  # two cold starts


def test_the_price_is_what_the_first_move_took(ran: dict[str, Studio]) -> None:
    reasons = [
        effect.entry.reason  # type: ignore[union-attr]  # control keeps no evidence
        for turn in ran["moving"].sim.log.of(CONTROL)
        for effect in turn.effects
        if isinstance(effect, Record)
    ]
    prices = [float(reason.rsplit(" ", 2)[1]) for reason in reasons]
    assert prices[0] == 26.0  # believed
    assert 26.0 < prices[1] < 33.0  # measured: and two denoise steps, encoding and decoding


def test_under_a_steady_mix_the_pools_settle() -> None:
    wanted = [*stream("picture", PICTURE, 1.5, 0), *stream("video", VIDEO, 0.3, 0)]
    found = Studio(*pools(), front=FRONT, shapes=MOVES).run(sorted(wanted, key=lambda request: request.arrived_ns))
    shapes = control(found).shapes
    assert shapes is not None
    assert shapes.moved <= 1


def test_the_ledger_is_empty_afterwards_and_every_replica_is_in_one_pool(ran: dict[str, Studio]) -> None:  # SPEC L-2
    studio = ran["moving"]
    assert all(account.reserved == 0 for account in studio.front.ledger.views())
    assert all(account.used == 0 for account in studio.front.ledger.views() if account.kind == "level")
    ranges = [studio.painter(node).worker.machine.pixels for pool in studio.pools for node in pool.replicas]
    assert {least for least, _ in ranges} == {0, PIXELS + 1}  # both are still served


def control(studio: Studio) -> ControlNode:
    node = studio.sim.lives[CONTROL].node
    assert isinstance(node, ControlNode)
    return node
