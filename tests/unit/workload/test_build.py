import tracemalloc
from itertools import islice
from statistics import fmean

import msgspec
import pytest

from headway.core.blockhash import block_hashes, cache_root
from headway.core.errors import ConfigError
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_S
from headway.workload.arrivals import Poisson, Regular
from headway.workload.build import build
from headway.workload.lengths import Lengths
from headway.workload.mint import Served
from headway.workload.offered import Offered
from headway.workload.spec import ClosedLoop, Predicted, SloParams, Synthetic, Think, WorkloadParams

SERVED = (Served("m", 16), Served("n", 32))


def made(*specs: WorkloadParams, seed: int = 0, count: int = 10_000) -> list[Offered]:
    return list(islice(build(specs, seed, SERVED).first(), count))


def llm(offered: Offered) -> LlmRequest:
    assert isinstance(offered.request, LlmRequest)
    return offered.request


def test_workloads_are_merged_in_the_order_of_arrival() -> None:  # SPEC J2
    items = made(
        Synthetic(name="slow", arrivals=Regular(rate_per_s=1.0), count=5, model="n", tenant="b"),
        Synthetic(name="fast", arrivals=Regular(rate_per_s=2.0), count=10),
    )
    times = [item.request.arrived_ns for item in items]
    assert times == sorted(times)
    assert [item.request.id for item in items][:3] == ["req-fast-0", "req-slow-0", "req-fast-1"]
    assert {(item.request.model, item.request.tenant) for item in items} == {("n", "b"), ("m", "default")}


def test_prompts_are_hashed_with_the_block_size_of_their_model() -> None:  # SPEC B2
    spec = {"families": 2, "shared_tokens": 40, "prompt": Lengths(mean=100.0), "count": 40}
    for model, block_tokens in (("m", 16), ("n", 32)):
        for item in made(Synthetic(model=model, **spec)):  # type: ignore[arg-type]  # fields of Synthetic
            request = llm(item)
            assert request.cache_root == cache_root(model=model)
            assert request.block_tokens == block_tokens
            assert request.block_hashes == block_hashes(request.cache_root, request.prompt, block_tokens)


def test_prompts_of_a_family_share_their_beginning_and_nothing_else() -> None:
    spec = Synthetic(families=3, shared_tokens=32, prompt=Lengths(kind="fixed", mean=64.0), count=60)
    requests = [llm(item) for item in made(spec)]
    assert len({request.block_hashes[1] for request in requests}) == 3
    assert len({request.block_hashes[2] for request in requests}) == 60
    alone = [llm(item) for item in made(Synthetic(prompt=Lengths(kind="fixed", mean=64.0), count=60))]
    assert len({request.block_hashes[0] for request in alone}) == 60


def test_prompts_that_nobody_hashes_are_equal_to_those_that_are() -> None:
    spec = {"families": 2, "shared_tokens": 40, "count": 20}
    hashed, plain = (made(Synthetic(is_cacheable=flag, **spec)) for flag in (True, False))  # type: ignore[arg-type]  # fields of Synthetic
    for one, other in zip(hashed, plain, strict=True):
        assert llm(other) == msgspec.structs.replace(llm(one), block_hashes=(), block_tokens=0, cache_root=b"")


def test_popular_families_follow_zipfs_law() -> None:
    spec = Synthetic(families=100, family_skew=1.0, shared_tokens=8, prompt=Lengths(kind="fixed", mean=8.0), count=4000)
    seen: dict[tuple[int, ...], int] = {}
    for item in made(spec):
        seen[llm(item).prompt] = seen.get(llm(item).prompt, 0) + 1
    harmonic = sum(1 / k for k in range(1, 101))
    assert max(seen.values()) / 4000 == pytest.approx(1 / harmonic, rel=0.12)  # 770 expected, deviation 25


def test_a_client_tells_its_length_only_when_asked_to() -> None:
    hidden = llm(made(Synthetic(count=1, max_tokens=777))[0])
    assert (hidden.max_tokens, hidden.ignores_eos, hidden.output_tokens_predicted) == (777, False, None)
    told = made(Synthetic(count=1, tells_length=True))[0]
    assert (llm(told).max_tokens, llm(told).ignores_eos) == (told.output_tokens, True)


def test_an_answer_ends_at_the_limit_of_the_client() -> None:
    items = made(Synthetic(count=50, max_tokens=32, output=Lengths(mean=64.0)))
    assert max(item.output_tokens for item in items) == 32


def test_predictions_err_as_asked() -> None:  # SPEC J4: mispredicted lengths
    output = Lengths(kind="fixed", mean=1000.0)
    exact = made(Synthetic(count=20, output=output, predicted=Predicted()))
    assert {llm(item).output_tokens_predicted for item in exact} == {1000}
    wrong = made(Synthetic(count=4000, output=output, predicted=Predicted(error=0.5, bias=2.0)))
    predicted = sorted(llm(item).output_tokens_predicted or 0 for item in wrong)
    # The median of truth * 2 * e^(0.5 z), and its 84th percentile one deviation above.
    assert predicted[2000] == pytest.approx(2000, rel=0.05)
    assert predicted[3365] == pytest.approx(2000 * 2.718281828**0.5, rel=0.06)


def test_slo_urgency_and_weight_travel_with_the_request() -> None:  # SPEC L-4
    request = llm(made(Synthetic(count=1, slo=SloParams(ttft_ms=10.0), urgency=3, tenant_weight=5))[0])
    assert request.slo.ttft_deadline_ns == request.arrived_ns + 10_000_000
    assert (request.urgency, request.tenant_weight) == (3, 5)


def test_rate_scale_brings_more_requests_and_time_scale_longer_gaps() -> None:  # SPEC J2
    base = [item.request.arrived_ns for item in made(Synthetic(count=50, start_s=1.0))]
    double = [item.request.arrived_ns for item in made(Synthetic(count=50, start_s=1.0, rate_scale=2.0))]
    slow = [item.request.arrived_ns for item in made(Synthetic(count=50, start_s=1.0, time_scale=3.0))]
    for one, two, three in zip(base, double, slow, strict=True):
        assert two - NS_PER_S == pytest.approx((one - NS_PER_S) / 2, abs=1)
        assert three - NS_PER_S == pytest.approx((one - NS_PER_S) * 3, abs=3)


def test_a_seed_is_one_workload_and_workloads_of_one_seed_differ() -> None:  # SPEC J6
    spec = Synthetic(count=30)
    assert made(spec, seed=3) == made(spec, seed=3)
    assert made(spec, seed=3) != made(spec, seed=4)
    two = made(spec, spec)
    lengths = [[len(llm(item).prompt) for item in two if item.request.id.startswith(f"req-{k}-")] for k in (0, 1)]
    assert lengths[0] != lengths[1]
    assert made(Synthetic(count=10))[:10] == made(Synthetic(count=30))[:10]


def test_clients_of_a_closed_loop_keep_their_number_in_flight_and_think_between() -> None:  # SPEC J2
    spec = ClosedLoop(clients=4, count=30)
    source = build([spec], 0, SERVED)
    first = list(source.first())
    assert len(first) == 4
    sent, flying, now = len(first), [item.request.id for item in first], NS_PER_S
    while flying:
        now += 5
        after = source.after(flying.pop(0), now)
        if after is not None:
            assert after.request.arrived_ns == now
            flying.append(after.request.id)
            sent += 1
            assert len(flying) == 4
    assert sent == 30


def test_a_client_of_a_closed_loop_keeps_its_tenant() -> None:
    source = build([ClosedLoop(clients=12, count=100, tenants=3)], 0, SERVED)
    first = list(source.first())
    assert {item.request.tenant for item in first} == {"default-0", "default-1", "default-2"}
    for item in first:
        after = source.after(item.request.id, NS_PER_S)
        assert after is not None
        assert after.request.tenant == item.request.tenant


def test_think_times_have_the_mean_and_a_refused_client_goes_on() -> None:
    spec = ClosedLoop(clients=1, count=3000, think=Think(mean_s=2.0, cv=1.0))
    source = build([spec], 0, SERVED)
    (item,) = source.first()
    waits = []
    while (after := source.after(item.request.id, item.request.arrived_ns, ())) is not None:
        waits.append((after.request.arrived_ns - item.request.arrived_ns) / NS_PER_S)
        item = after
    assert len(waits) == 2999
    assert fmean(waits) == pytest.approx(2.0, rel=0.08)  # the standard error is 1.8 %


def test_a_model_that_nothing_serves_is_refused() -> None:
    with pytest.raises(ConfigError, match="model 'x' is served by no pool; served are: m, n"):
        build([Synthetic(model="x")], 0, SERVED)
    with pytest.raises(ConfigError, match="one or more tables"):
        build([], 0, SERVED)


def test_a_long_workload_is_never_held() -> None:  # a request of 2000 tokens takes 16 kB
    stream = build([Synthetic(arrivals=Poisson(rate_per_s=50.0), count=10**9)], 0, SERVED).first()
    for _ in range(20):
        next(stream)
    tracemalloc.start()
    for _ in range(1500):
        next(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000
