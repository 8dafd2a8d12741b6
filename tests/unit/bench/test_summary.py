import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.outcome import Outcome
from headway.bench.summary import Quantiles, Targets, meets, nearest_rank, quantiles, summarise, table
from headway.core.units import NS_PER_MS, NS_PER_S


def outcome(sent_ms: float, *times_ms: float, error: str | None = None) -> Outcome:
    times = tuple(round((sent_ms + t) * NS_PER_MS) for t in times_ms)
    sent = round(sent_ms * NS_PER_MS)
    return Outcome(sent, times[-1] if times else sent, times, len(times), 5, error)


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0.01, 1.0))
def test_nearest_rank_is_a_value_that_the_share_does_not_exceed(values: list[float], share: float) -> None:  # SPEC I3
    ordered = sorted(values)
    value = nearest_rank(ordered, share)
    assert sum(other <= value for other in ordered) >= share * len(ordered)
    assert sum(other < value for other in ordered) < share * len(ordered)


def test_times_per_request_and_between_tokens() -> None:  # SPEC K1
    summary = summarise([outcome(0, 10, 14, 20), outcome(100, 30)], Targets())
    assert (summary.ttft_ms.p50, summary.ttft_ms.max, summary.ttft_ms.mean) == (10.0, 30.0, 20.0)
    assert (summary.tpot_ms.count, summary.tpot_ms.mean) == (1, 5.0)
    assert (summary.itl_ms.count, summary.itl_ms.p50, summary.itl_ms.max) == (2, 4.0, 6.0)
    assert summary.duration_s == pytest.approx(0.130)
    assert summary.output_tokens_per_s == pytest.approx(4 / 0.130)


def test_a_failed_request_counts_as_a_miss_and_in_no_percentile() -> None:  # SPEC A7, I3
    outcomes = [outcome(0, 10, 20), outcome(0, error="queue_full"), outcome(0, 500, 1000)]
    summary = summarise(outcomes, Targets(ttft_ms=100.0))
    assert (summary.sent, summary.completed, summary.errors) == (3, 2, {"queue_full": 1})
    assert summary.attainment == pytest.approx(1 / 3)
    assert summary.goodput_per_s == pytest.approx(1.0)
    assert summary.ttft_ms.count == 2


@pytest.mark.parametrize(
    ("targets", "is_met"),
    [
        (Targets(), True),
        (Targets(ttft_ms=10.0), True),
        (Targets(ttft_ms=9.9), False),
        (Targets(tpot_ms=4.9), False),
        (Targets(e2e_ms=20.0), True),
        (Targets(e2e_ms=19.0), False),
    ],
)
def test_every_target_must_be_met(targets: Targets, is_met: bool) -> None:
    assert meets(outcome(0, 10, 14, 20), targets) == is_met


def test_nothing_measured_is_none_and_not_zero() -> None:
    assert quantiles([]).p99 is None
    empty = summarise([], Targets())
    assert (empty.sent, empty.attainment, empty.goodput_per_s) == (0, 0.0, 0.0)
    assert "-" in table(empty)


def test_the_table_names_errors() -> None:
    shown = table(summarise([outcome(0, 10, 20), outcome(NS_PER_S, error="no_replica")], Targets()))
    assert "1 of 2 completed" in shown
    assert "no_replica: 1" in shown


def test_the_table_has_the_words_of_the_first_of_each_error() -> None:
    failed = [
        msgspec.structs.replace(outcome(0, error="invalid_value"), message=said) for said in ("It is a painter.", "No.")
    ]
    assert "error      invalid_value: 2; It is a painter." in table(summarise(failed, Targets()))


def test_times_of_tokens_are_shown_of_text_only() -> None:
    text = table(summarise([outcome(0, 10, 20)], Targets()), Quantiles(1, 5.0, 5.0, 5.0, 5.0, 5.0))
    assert [line.split()[0] for line in text.splitlines()[5:]] == ["ttft", "tpot", "itl", "e2e", "queues"]
    picture = msgspec.structs.replace(outcome(0, 10), output_tokens=0)
    shown = table(summarise([picture], Targets()), Quantiles(1, 5.0, 5.0, 5.0, 5.0, 5.0))
    assert [line.split()[0] for line in shown.splitlines()[5:]] == ["e2e", "queues"]
    assert "output tokens" not in shown


def test_pictures_and_seconds_of_video_per_second_have_their_unit() -> None:  # SPEC K1, I3
    whole = msgspec.structs.replace(outcome(0, 2000), output_tokens=0)
    asked = [
        msgspec.structs.replace(whole, images=3),
        msgspec.structs.replace(whole, video_s=4.0),
        msgspec.structs.replace(whole, images=7, error="lost"),
        whole,  # a video that tells no frames per second
    ]
    made = summarise(asked, Targets())
    assert (made.images_per_s, made.video_s_per_s) == (1.5, 2.0)
    assert "rate       1.50 requests/s, 1.50 images/s, 2.00 s of video/s" in table(made)
    text = summarise([outcome(0, 10, 20)], Targets())
    assert (text.images_per_s, text.video_s_per_s) == (None, None)
    assert not [word for word in ("images", "video") if word in table(text)]
