from collections import Counter

import msgspec
from tests.unit.sched.router.rivals import fleets, names
from tests.unit.sched.router.views import View, llm

from headway.core.blockhash import block_hashes, cache_root
from headway.core.request import LlmRequest, Slo
from headway.core.units import NS_PER_S
from headway.sched.router.policies.dualmap import Dualmap

POLICY = Dualmap(Dualmap.Params())
FLEET = [View(f"rep-{place}", prefill_tokens_per_s=1000.0) for place in range(8)]


def prompt(prefix: int, name: str = "req-1") -> LlmRequest:
    """600 tokens, of which the first 512 are the prefix's and the others the request's own."""
    tokens = tuple(prefix * 1000 + place if place < 512 else len(name) + int(name[4:]) for place in range(600))
    return llm(name, tokens=tokens, block_hashes=block_hashes(cache_root(model="m"), tokens, 16), block_tokens=16)


def test_is_the_published_choice_between_its_two_candidates() -> None:
    slo = POLICY._params.ttft_slo_s
    for request, views in fleets("dualmap"):
        ranked = names(POLICY.rank(request, views, 0))
        assert len(ranked) == min(2, len(views))
        pair = sorted((v for v in views if v.id in ranked), key=lambda v: v.id)
        pending = {v.id: v.queued_tokens + request.prompt_tokens - v.hit_tokens for v in pair}
        affine = sorted(pair, key=lambda v: (-v.hit_tokens, pending[v.id]))[0]
        rate = affine.prefill_tokens_per_s
        if rate == 0 or pending[affine.id] <= rate * slo:
            assert ranked[0] == affine.id
        else:
            times = {v.id: pending[v.id] / (v.prefill_tokens_per_s or rate) for v in pair}
            assert times[ranked[0]] == min(times.values())  # type: ignore[index]  # a node id is a string


def test_the_candidates_depend_on_the_prefix_and_not_on_load() -> None:
    busy = [msgspec.structs.replace(v, queued_tokens=place * 900) for place, v in enumerate(FLEET)]
    for prefix in range(30):
        alone = set(names(POLICY.rank(prompt(prefix), FLEET, 0)))
        assert set(names(POLICY.rank(prompt(prefix, "req-2"), busy[::-1], 0))) == alone


def test_prefixes_are_dispersed_over_the_fleet() -> None:
    counts = Counter(name for prefix in range(800) for name in names(POLICY.rank(prompt(prefix), FLEET, 0)))
    assert set(counts) == {v.id for v in FLEET}
    assert max(counts.values()) < 1.5 * min(counts.values())  # 200 each, sigma 13


def test_a_replica_that_goes_moves_only_its_own_prefixes() -> None:
    for prefix in range(100):
        before = set(names(POLICY.rank(prompt(prefix), FLEET, 0)))
        after = set(names(POLICY.rank(prompt(prefix), FLEET[1:], 0)))
        assert before - {"rep-0"} <= after


def test_stays_with_the_affine_candidate_until_it_misses_the_slo() -> None:
    first, second = names(POLICY.rank(prompt(1), FLEET, 0))

    def asked(queued: int, request: LlmRequest) -> str:
        home = View(first, hit_tokens=500, queued_tokens=queued, prefill_tokens_per_s=1000.0)
        others = [v for v in FLEET if v.id != first]
        return names(POLICY.rank(request, [home, *others], 0))[0]

    assert asked(4900, prompt(1)) == first  # 4900 + 100 of its own take the 5 s
    assert asked(4901, prompt(1)) == second
    hurried = msgspec.structs.replace(prompt(1), slo=Slo(ttft_deadline_ns=NS_PER_S))
    assert asked(900, hurried) == first
    assert asked(901, hurried) == second
