from pathlib import Path

import pytest

from headway.core.errors import ConfigError
from headway.workload import burstgpt

OLD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
NEW = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file in the shape of the release; the numbers are invented."""
    file = tmp_path / "b.csv"
    file.write_text(
        OLD
        + "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        + "118,GPT-4,417,276,693,API log\n118.5,ChatGPT,1360,647,2007,Conversation log\n"
    )
    return file


def test_failed_requests_are_left_out(path: Path) -> None:  # BurstGPT's README: failures have 0 response tokens
    rows = list(burstgpt.rows(path))
    assert [(row.at_ns // 10**9, row.input_tokens, row.output_tokens) for row in rows] == [
        (5, 472, 18),
        (118, 417, 276),
        (118, 1360, 647),
    ]
    assert rows[2].at_ns - rows[1].at_ns == 500_000_000


def test_models_and_log_types_are_chosen(path: Path) -> None:
    assert [row.input_tokens for row in burstgpt.rows(path, models=("GPT-4",))] == [417]
    assert [row.input_tokens for row in burstgpt.rows(path, log_types=("Conversation log",))] == [472, 1360]


def test_columns_of_newer_releases_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text(NEW + "5,17,2.5,ChatGPT,472,18,490,Conversation log\n")
    (row,) = burstgpt.rows(path)
    assert (row.input_tokens, row.output_tokens) == (472, 18)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("x,ChatGPT,1,1,2,API log", "line 2: Timestamp 'x' is not a number"),
        ("nan,ChatGPT,1,1,2,API log", "line 2: time nan; it needs 0 or more"),
        ("1,ChatGPT,1,1", "line 2: 4 fields"),
        ("1,ChatGPT,a,1,2,API log", "line 2: Request tokens 'a'"),
        ("1,ChatGPT,1,-4,2,API log", "line 2: -4 output tokens"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, text: str) -> None:
    path = tmp_path / "b.csv"
    path.write_text(OLD + line)
    with pytest.raises(ConfigError, match=text):
        list(burstgpt.rows(path))
