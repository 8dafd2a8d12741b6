"""A synthetic workload: arrivals, lengths and prompts that share prefixes in families."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from headway.core.blockhash import block_hashes, cache_root
from headway.core.draw import draw_below
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_MS, Ns
from headway.workload.arrivals import poisson, regular
from headway.workload.lengths import Lengths


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`families`: how many different prompt beginnings; 0: no two prompts share one."""

    rate_per_s: float = 10.0
    count: int = 200
    arrivals: Literal["poisson", "regular"] = "poisson"
    prompt: Lengths = Lengths(mean=256.0)
    output: Lengths = Lengths(mean=128.0)
    families: int = 0
    shared_tokens: int = 0  # of a family's prompts
    tenants: int = 1
    ignore_eos: bool = True
    seed: int = 0


def requests(workload: Workload, model: str, vocab_size: int, block_size: int) -> Iterator[LlmRequest]:
    """Yield the requests in the order of their arrival."""
    w, seed = workload, workload.seed
    times: Iterator[Ns] = regular(w.rate_per_s, w.count, NS_PER_MS)
    if w.arrivals == "poisson":
        times = poisson(w.rate_per_s, w.count, seed, NS_PER_MS)
    root = cache_root(model=model)
    for place, at_ns in enumerate(times):
        prompt = _prompt(w, place, vocab_size)
        yield LlmRequest(
            id=RequestId(f"req-{place}"),
            tenant=TenantId(f"tenant-{draw_below(seed, 'tenant', 0, place, w.tenants)}"),
            model=ModelId(model),
            prompt=prompt,
            sampling=SamplingParams(
                max_tokens=w.output.draw(seed, "output", place), temperature=0, ignore_eos=w.ignore_eos
            ),
            arrived_ns=at_ns,
            block_hashes=block_hashes(root, prompt, block_size),
            block_tokens=block_size,
            cache_root=root,
        )


def _prompt(w: Workload, place: int, vocab_size: int) -> tuple[int, ...]:
    length = w.prompt.draw(w.seed, "prompt", place)
    shared = min(w.shared_tokens, length) if w.families else 0
    family = draw_below(w.seed, "family", 0, place, w.families) if w.families else 0
    # One draw starts a cheap sequence; a draw per token would cost more than the simulation.
    start = draw_below(w.seed, f"family-{family}", 0, 0, vocab_size)
    own = draw_below(w.seed, f"own-{place}", 0, 0, vocab_size)
    head = tuple((start + 7919 * k) % vocab_size for k in range(shared))
    return head + tuple((own + 104729 * k + place) % vocab_size for k in range(length - shared))
