from pathlib import Path

import pytest

from headway.bench.charts import Mark
from headway.bench.run_faults import fault_marks, faults_of, faults_table
from headway.bench.run_report import page
from headway.bench.run_view import RunView, view_of
from headway.bench.scenarios import read_scenario
from headway.bench.simulated import simulate

FAULTS = [
    {"kind": "kill", "replica": "rep-pool-0", "at_s": 1.0, "back_s": 0.5},
    {"kind": "straggle", "replica": "rep-pool-1", "from_s": 0.5, "until_s": 900.0, "factor": 2.5},
    {"kind": "slow_links", "from_s": 800.0},
]


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    folder: Path = tmp_path_factory.mktemp("runs") / "run"
    changes = {"workload.count": 20, "faults": FAULTS}
    simulate(read_scenario(None, changes), folder=folder)
    return view_of(folder)


def test_faults_are_numbered_by_their_beginning_and_marked_as_far_as_the_run_went(view: RunView) -> None:  # SPEC J4
    shown = faults_of(view)
    assert [(fault.number, fault.kind, fault.where) for fault in shown] == [
        (1, "straggle", "rep-pool-1"),
        (2, "kill", "rep-pool-0"),
        (3, "slow links", "all links between nodes"),
    ]
    assert fault_marks(shown, view.summary.virtual_s) == (
        Mark(0.5, "fault 1"),
        Mark(1.0, "fault 2"),
        Mark(1.5, "2 over"),
    )
    table = faults_table(shown, view.summary.virtual_s)
    assert "steps take 2.5 times as long" in table
    assert "10% of the bandwidth is left, 0 ms more per message (after the end of the run)" in table


def test_every_plot_over_time_has_the_marks(view: RunView) -> None:
    text = page(view)
    over_time = text[text.index("<h2>Over time</h2>") : text.index("<h2>Latency</h2>")]
    assert over_time.count("<svg") == over_time.count(">fault 2<") == over_time.count(">2 over<") >= 5
    assert ">fault 3<" not in text
    assert "<h2>Faults</h2>" in text


def test_a_run_without_faults_speaks_of_none(tmp_path: Path) -> None:
    simulate(read_scenario(None, {"workload.count": 3}), folder=tmp_path / "run")
    assert "<h2>Faults</h2>" not in page(view_of(tmp_path / "run"))
