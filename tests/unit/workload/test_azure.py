from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.workload import azure
from headway.workload.rows import Row
from headway.workload.stats import trace_stats

ROOT = Path(__file__).parents[3]
SLICES = ROOT / "examples/data"
WHOLE = ROOT.parent / "shared/data/traces"
HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def read(path: Path, content: bytes) -> list[Row]:
    path.write_bytes(content)
    return list(azure.rows(path))


def test_stamps_keep_their_tenths_of_microseconds(tmp_path: Path) -> None:  # SPEC J2
    rows = read(tmp_path / "t", HEADER + b"2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951691,396,109")
    assert rows[1].at_ns - rows[0].at_ns == 4_314_579_100
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109)]


def test_stamps_of_2024_have_a_time_zone_or_no_fraction(tmp_path: Path) -> None:
    rows = read(tmp_path / "t", HEADER + b"2024-05-10 00:00:00+00:00,10,5\n2024-05-10 00:00:00.009930+00:00,2162,5\n")
    assert rows[1].at_ns - rows[0].at_ns == 9_930_000


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"yesterday,1,1", "line 2: TIMESTAMP 'yesterday' is not like"),
        (b"2023-11-16 18:15:46.68059001234,1,1", "line 2: TIMESTAMP"),
        (b"2023-11-16 18:15:46.5,1,x", "line 2: GeneratedTokens 'x' is not an integer"),
        (b"2023-11-16 18:15:46.5,1", "line 2: 2 fields"),
        (b"2023-11-16 18:15:46.5,0,3", "line 2: 0 input tokens"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read(tmp_path / "t", HEADER + line)
    with pytest.raises(ConfigError, match="line 1: no column 'TIMESTAMP'"):
        read(tmp_path / "t", line)


def test_the_slices_are_what_their_sources_say() -> None:
    conv, code = (trace_stats(azure.rows(SLICES / f"azure_{name}_2023.csv")) for name in ("conv", "code"))
    assert (conv.requests, code.requests) == (1500, 1000)
    assert code.gap_cv > 5 > conv.gap_cv


# simulators.md §3: requests, rate, cv, input and output p50/p90/p99 (mean), to the digits printed there
TABLE = {
    "conv": (19_366, 3502, 5.53, 1.09, (1020, 2734, 4142, 1155), (129, 424, 601, 211)),
    "code": (8_819, 3436, 2.57, 13.2, (1469, 5188, 7436, 2048), (13, 55, 251, 28)),
}


@pytest.mark.skipif(not WHOLE.exists(), reason="the whole traces are not on this machine")
@pytest.mark.parametrize("name", ["conv", "code"])
def test_the_whole_trace_has_the_figures_that_were_measured_elsewhere(name: str) -> None:
    stats = trace_stats(azure.rows(WHOLE / f"azure_{name}_2023.csv"))
    count, span_s, rate, cv, asked, answered = TABLE[name]
    assert stats.requests == count
    assert stats.span_s == pytest.approx(span_s, abs=0.5)
    assert stats.rate_per_s == pytest.approx(rate, abs=0.006)
    assert stats.gap_cv == pytest.approx(cv, abs=0.06)
    for spread, (p50, p90, p99, mean) in ((stats.input, asked), (stats.output, answered)):
        assert (spread.p50, spread.p90, spread.p99, spread.mean) == pytest.approx((p50, p90, p99, mean), abs=0.51)
