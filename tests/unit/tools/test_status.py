from tools.status import Demand, citations, faults, malformed, page, state


def test_citations_name_ids_and_the_kind_of_test() -> None:
    files = [("unit/x.py", "# SPEC B2\n"), ("sim/test_y.py", "    # SPEC B2, L-3 SPEC A7b\n"), ("unit/z.py", "SPEC C1")]
    assert citations(files) == {"B2": {"unit", "sim"}, "L-3": {"sim"}, "A7b": {"sim"}}


def test_a_misspelt_citation_is_found() -> None:
    text = "# SPEC 2B\n# SPEC: B2\n# SPEC B2 and B3\n# SPEC B2\n# SPEC B2-x\n"
    assert [line.split(": ", 1)[0] for line in malformed([("t.py", text)])] == ["t.py:1", "t.py:2", "t.py:5"]


def test_the_strongest_kind_of_test_decides_the_state() -> None:
    assert state(Demand("x"), {"sim", "unit"}) == "proven"
    assert state(Demand("x"), {"sim"}) == "simulated"
    assert state(Demand("x"), {"device"}) == "written, not run on a device"
    assert state(Demand("x", open="issue 9"), set()) == "not started: issue 9"


def test_what_is_open_keeps_an_id_from_being_proven() -> None:
    assert state(Demand("x", open="swap"), {"unit"}) == "proven in part; open: swap"


def test_unknown_and_bare_ids_are_faults() -> None:
    ids = {"A1": Demand("x"), "A2": Demand("x", open="issue 3"), "A3": Demand("x")}
    found = faults(ids, {"A3": {"unit"}, "Z9": {"unit"}})
    assert [line.split()[:4] for line in found] == [["a", "test", "cites", "Z9,"], ["A1", "has", "neither", "a"]]


def test_page_counts_states_and_lists_every_id() -> None:
    text = page({"A1": Demand("asks"), "B1": Demand("asks too", open="issue 3")}, {"A1": {"unit"}})
    assert "1 not started, 1 proven." in text
    assert "| A1 | asks | proven |" in text
    assert "| B1 | asks too | not started: issue 3 |" in text
