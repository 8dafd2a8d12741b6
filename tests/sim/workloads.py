"""Requests and fleets for simulation tests."""

import msgspec

from headway.core.blockhash import block_hashes, cache_root
from headway.core.draw import draw_below
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_MS, Ns
from headway.engines.synthetic.engine import SyntheticParams
from headway.engines.synthetic.tokens import reference
from headway.sched.llm.params import LlmParams
from headway.sim.driver import SimParams
from headway.sim.fleet import Fleet, FleetParams

VOCAB = 500
ENGINE = SyntheticParams(kv_blocks=200, vocab_size=VOCAB, check=True)
ROOT = cache_root(model="synthetic")
CHECKED = SimParams(check=True, log=True)


def request(name: str, prompt: int, output: int, at_ns: Ns, family: int = 0) -> LlmRequest:
    """Requests of one family share their prompt's beginning."""
    tokens = tuple(draw_below(family, "prompt", 0, place, VOCAB) for place in range(prompt))
    return LlmRequest(
        RequestId(name),
        TenantId("default"),
        ModelId("synthetic"),
        tokens,
        SamplingParams(max_tokens=output, temperature=0),
        at_ns,
        block_hashes=block_hashes(ROOT, tokens, ENGINE.block_size),
        block_tokens=ENGINE.block_size,
        cache_root=ROOT,
    )


def mix(count: int, seed: int = 0, gap_ns: Ns = 2 * NS_PER_MS, longest: int = 60) -> list[LlmRequest]:
    """Requests of random lengths, in families of four."""

    def below(what: str, place: int, bound: int) -> int:
        return draw_below(seed, what, 0, place, bound)

    return [
        request(f"req-{i}", 1 + below("p", i, 90), 1 + below("o", i, longest), NS_PER_MS + i * gap_ns, family=i // 4)
        for i in range(count)
    ]


def fleet(**change: object) -> Fleet:
    """A checked fleet of two replicas, with fields changed."""
    base = FleetParams(replicas=2, engine=ENGINE, sim=CHECKED, llm=LlmParams(max_seqs=16, step_tokens=512))
    return Fleet(msgspec.structs.replace(base, **change))


def run(ran: Fleet, requests: list[LlmRequest]) -> Fleet:
    """Offer the requests and run to the end of everything."""
    ran.offer(requests)
    ran.sim.run()
    return ran


def wrong(ran: Fleet, requests: list[LlmRequest]) -> list[str]:
    """Requests whose client did not get exactly what the request alone produces."""
    out = []
    for item in requests:
        stream = ran.sim.clients.streams[item.id]
        tokens, reason = reference(item.prompt, item.sampling, VOCAB, ENGINE.eos_token_ids)
        if stream.end is None or stream.tokens != tokens or stream.end.reason != reason:
            out.append(f"{item.id}: {stream.end}, {len(stream.tokens)} of {len(tokens)} tokens")
    return out


def levels(ran: Fleet) -> dict[str, int]:
    """What every live node's level accounts hold, caches left out."""
    views = list(ran.front.ledger.views())
    for place in range(len(ran.replicas)):
        views += ran.worker(place).worker.machine.accounts()
    return {view.name: view.reserved + view.used for view in views if view.kind == "level" and not view.cache}
