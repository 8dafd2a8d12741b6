import tracemalloc

import pytest
from tests.unit.sched.router.views import llm

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest, TextRequest
from headway.cost.output_length import Bucket, LengthParams, OutputLengths

PARAMS = LengthParams(quantile=0.5, samples=100, samples_min=30)


def asks(tenant: str = "a", model: str = "m", max_tokens: int = 1000) -> LlmRequest:
    return llm("req-1", max_tokens=max_tokens, tenant=TenantId(tenant), model=ModelId(model))


def taught(outputs: range, request: LlmRequest | None = None, params: LengthParams = PARAMS) -> OutputLengths:
    lengths = OutputLengths(params)
    for tokens in outputs:
        lengths.learn(request or asks(), tokens)
    return lengths


def test_it_is_a_quantile_of_what_its_like_came_to() -> None:  # SPEC A3
    assert taught(range(1, 41)).estimate(asks()) == 20
    late = LengthParams(quantile=0.9, samples_min=30)
    assert taught(range(1, 41), params=late).estimate(asks()) == 36


def test_below_30_samples_a_coarser_bucket_answers_and_then_nobody() -> None:  # SPEC A3
    lengths = taught(range(1, 41))
    for _ in range(29):
        lengths.learn(asks(tenant="b"), 500)
    assert lengths.estimate(asks(tenant="b")) == 35  # those of both tenants
    lengths.learn(asks(tenant="b"), 500)
    assert lengths.estimate(asks(tenant="b")) == 500
    assert lengths.estimate(asks(tenant="c", max_tokens=3000)) == 35  # of the model alone
    assert lengths.estimate(asks(model="other")) is None


def test_classes_of_max_tokens_are_apart() -> None:  # SPEC A3
    lengths = taught(range(400, 440))
    for _ in range(30):
        lengths.learn(asks(max_tokens=100), 90)
    assert lengths.estimate(asks(max_tokens=120)) == 90
    assert lengths.estimate(asks(max_tokens=600)) == 419


def test_it_never_goes_beyond_max_tokens() -> None:
    assert taught(range(600, 640)).estimate(asks(max_tokens=550)) == 550


def test_what_runs_longer_is_measured_by_those_that_ran_so_long() -> None:  # SPEC A3
    lengths = taught(range(1, 101))
    assert lengths.estimate(asks(), 50) == 75
    assert lengths.estimate(asks(), 99) == 100
    assert lengths.estimate(asks(), 300) == 600  # longer than anybody
    assert lengths.estimate(asks(), 900) == 1000


def test_a_forced_length_neither_teaches_nor_needs_a_guess() -> None:
    lengths = OutputLengths(PARAMS)
    sampling = asks().sampling
    forced = llm("req-1", sampling=type(sampling)(max_tokens=700, ignore_eos=True))
    for _ in range(40):
        lengths.learn(forced, 700)
        lengths.learn(asks(), 0)
    assert len(lengths) == 0
    assert taught(range(1, 41), asks(model="synthetic")).estimate(forced) is None


def test_relayed_requests_are_learned_too() -> None:
    text = TextRequest(RequestId("req-1"), TenantId("a"), ModelId("m"), 10, 1000, 0)
    lengths = OutputLengths(PARAMS)
    for tokens in range(1, 41):
        lengths.learn(text, tokens)
    assert lengths.estimate(text) == 20


def test_old_outputs_are_forgotten() -> None:
    lengths = taught(range(1, 101))
    for _ in range(100):
        lengths.learn(asks(), 7)
    assert lengths.estimate(asks()) == 7


def test_buckets_are_bounded_and_the_least_fed_goes() -> None:
    lengths = OutputLengths(LengthParams(quantile=0.5, samples_min=1, buckets_max=4))
    for place in range(50):
        lengths.learn(asks(tenant=f"tenant-{place}"), place + 1)
    assert len(lengths) == 4  # two tenants, and what all of them share
    assert lengths.estimate(asks(tenant="tenant-49")) == 50


def test_its_memory_is_that_of_its_samples() -> None:
    params = LengthParams(samples=64, buckets_max=50)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        lengths = OutputLengths(params)
        for place in range(80):
            asked = asks(tenant=f"tenant-{place}")
            for tokens in range(70):
                lengths.learn(asked, 1000 + tokens)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 50 * (64 * 4 * 2 * 1.5 + 1000)  # arrays grow by an eighth; a bucket, its key and its entry


def test_an_empty_bucket_knows_nothing() -> None:
    assert Bucket(4).quantile(0.5) is None


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_one_sample_is_every_quantile(share: float) -> None:
    bucket = Bucket(4)
    bucket.add(9)
    assert bucket.quantile(share) == 9
