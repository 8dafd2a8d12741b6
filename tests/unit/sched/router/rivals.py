"""Random fleets and requests for differential tests of routing policies, and histories to observe."""

from collections.abc import Iterator, Sequence
from random import Random

from tests.unit.sched.router.views import View, llm

from headway.core.blockhash import block_hashes, cache_root
from headway.core.ids import NodeId, RequestId
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS, NS_PER_S
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Learned, Left, Scored

BLOCK = 16
ROOT = cache_root(model="synthetic")


def asked(rng: Random, name: str) -> LlmRequest:
    """A request of one of three families: those of a family share the beginning of their prompts."""
    family, length = rng.randrange(3), rng.choice((1, 15, 16, 40, 64, 100, 160, 400))
    shared = rng.randrange(length + 1)
    prompt = tuple(family * 1000 + place for place in range(shared))
    prompt += tuple(rng.randrange(10_000, 99_999) for _ in range(length - shared))
    hashes = block_hashes(ROOT, prompt, BLOCK)
    return llm(name, tokens=prompt, block_hashes=hashes, block_tokens=BLOCK, session=f"s{family}")


def view(rng: Random, name: str, request: LlmRequest) -> View:
    """A replica in any state; small ranges make ties frequent."""
    return View(
        NodeId(name),
        requests=rng.choice((0, 1, 2, 5, 9, 40)),
        queued_tokens=rng.choice((0, 0, 64, 300, 5000, 90_000)),
        kv_tokens=rng.randrange(3000),
        output_tokens_expected=rng.randrange(500),
        waiting=rng.choice((0, 0, 1, 3)),
        in_flight=rng.choice((0, 1, 2, 5, 9, 80)),
        hit_tokens=min(rng.choice((0, 0, 16, 32, 64, 128, 384)), request.prompt_tokens - 1),
        uncached_in_flight=rng.choice((0, 0, 50, 4000, 400_000)),
        kv_usage=rng.choice((0.0, 0.3, 0.5, 0.99)),
        kv_tokens_total=rng.choice((0, 500, 4096)),
        prefill_tokens_per_s=rng.choice((0.0, 1000.0, 1000.0, 20_000.0)),
        step_ns=rng.choice((0, 20 * NS_PER_MS)),
        age_ns=rng.choice((0, NS_PER_S)),
    )


def fleets(name: str, count: int = 300) -> Iterator[tuple[LlmRequest, list[View]]]:
    """Pairs of a request and the fleet that it is ranked over; the same name gives the same pairs."""
    for seed in range(count):
        rng = Random(f"{name}-{seed}")
        request = asked(rng, f"req-{seed}")
        views = [view(rng, f"rep-{place}", request) for place in range(rng.randint(1, 7))]
        rng.shuffle(views)
        yield request, views


def history(name: str, length: int = 40, replicas: int = 4) -> Iterator[Learned]:
    """What a router tells a policy: dispatches, most of them answered and ended; now and then a replica leaves."""
    rng = Random(name)
    open_: list[tuple[RequestId, NodeId, int]] = []
    at_ns = 0
    for place in range(length):
        at_ns += rng.randrange(20 * NS_PER_S)
        request, node = asked(rng, f"old-{name}-{place}"), NodeId(f"rep-{rng.randrange(replicas)}")
        hit = min(rng.choice((0, 16, 64)), request.prompt_tokens - 1)
        yield Dispatched(at_ns, request, node, hit)
        open_.append((request.id, node, at_ns))
        if rng.random() < 0.7:
            answered, where, sent_ns = open_[rng.randrange(len(open_))]
            yield FirstToken(at_ns, answered, where, max(1, at_ns - sent_ns), rng.choice((None, 0, 16)))
        if rng.random() < 0.6:
            over, where, _sent = open_.pop(rng.randrange(len(open_)))
            yield Ended(at_ns, over, where, rng.randrange(50))
        if rng.random() < 0.05:
            gone = NodeId(f"rep-{rng.randrange(replicas)}")
            open_ = [item for item in open_ if item[1] != gone]
            yield Left(at_ns, gone)


def names(ranked: Sequence[Scored]) -> list[str]:
    """Ids, best first."""
    return [item.replica for item in ranked]
