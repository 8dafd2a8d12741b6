from headway.core.effects import Effect, Send, WakeAt
from headway.core.events import Event, TimerFired
from headway.core.ids import NodeId, RequestId, TimerId
from headway.core.messages import Accepted, Report
from headway.core.reports import ReplicaReport, StepCoefficients
from headway.sim.scrape import SCRAPE, ScrapedNode, ScrapeParams, as_scraped

FRONT, REPLICA = NodeId("front-0"), NodeId("rep-0")
EXACT = ReplicaReport(
    replica=REPLICA,
    incarnation=1,
    number=7,
    at_ns=5,
    role="llm",
    model="m",
    waiting=3,
    running=4,
    waiting_prefill_tokens=999,
    running_kv_tokens=1234,
    kv_blocks_free=60,
    kv_blocks_total=100,
    submits_seen=9,
    step_ns=11,
    prefill_tokens_per_s=1000.0,
    block_size=16,
    step_cost=StepCoefficients(1.0, 1.0, 1.0, 1.0, 1.0),
)


class Speaker:
    """A node that reports at every event and says one thing beside it."""

    id = REPLICA

    def handle(self, event: Event) -> list[Effect]:
        return [Send(FRONT, Report(EXACT)), Send(FRONT, Accepted(RequestId("req-1"), 1))]

    def check_invariants(self) -> None:
        pass


def fired(at_ns: int, timer: str) -> TimerFired:
    return TimerFired(at_ns, timer, TimerId(timer))


def test_a_page_holds_what_servers_publish_and_nothing_learned() -> None:
    page = as_scraped(EXACT)
    assert (page.waiting, page.running, page.kv_blocks_free, page.kv_blocks_total) == (3, 4, 60, 100)
    assert (page.waiting_prefill_tokens, page.step_ns, page.prefill_tokens_per_s) == (0, 0, 0.0)
    assert (page.step_cost, page.kv_events, page.source) == (None, None, "scrape")
    assert page.submits_seen == 9  # the gateway counts its own
    assert page.running_kv_tokens == 40 * 16


def test_reports_pass_at_the_interval_and_after_the_delay_only() -> None:
    node = ScrapedNode(Speaker(), ScrapeParams(interval_s=2.0, delay_s=0.5), 0.5)
    first = node.handle(fired(0, "else"))
    assert first == [Send(FRONT, Accepted(RequestId("req-1"), 1)), WakeAt(1_000_000_000, SCRAPE)]
    assert not any(isinstance(effect, WakeAt) for effect in node.handle(fired(10, "else")))
    read = node.handle(fired(1_000_000_000, SCRAPE))
    assert [effect.at_ns for effect in read if isinstance(effect, WakeAt)] == [1_500_000_000, 3_000_000_000]
    assert not any(isinstance(effect, Send) for effect in read)
    (heard,) = node.handle(fired(1_500_000_000, f"{SCRAPE}d"))
    assert isinstance(heard, Send)
    assert isinstance(heard.message, Report)
    assert heard.message.report.at_ns == 1_000_000_000
    assert heard.message.report.source == "scrape"
