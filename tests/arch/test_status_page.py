"""Every id of the specification is cited by a test or has a reason, and the page that says so is current."""

import re

import pytest
from tests.arch.rules import ROOT
from tools.status import PAGE, citations, faults, load_ids, malformed, page, sources

SPECIFICATION = ROOT.parent / "shared/design/SPEC.md"


# SPEC L-6
def test_every_id_is_cited_or_has_a_reason() -> None:
    assert faults(load_ids(), citations(sources())) == []


def test_no_citation_is_misspelt() -> None:
    assert malformed(sources()) == []


# SPEC L-6
def test_page_is_current() -> None:
    assert PAGE.read_text() == page(load_ids(), citations(sources())), "run `make status`"


@pytest.mark.skipif(not SPECIFICATION.is_file(), reason="the specification is not beside this checkout")
def test_ids_are_those_of_the_specification() -> None:
    text = SPECIFICATION.read_text()
    assert set(load_ids()) == {"L"} | set(re.findall(r"\bL-\d\b|\b[A-KM]\d{1,2}b?\b", text))
