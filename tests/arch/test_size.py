"""Modules, functions, classes and signatures stay small; exceptions sit in one list that may only shrink."""

from typing import NamedTuple

import pytest
from tests.arch.rules import (
    ROOT,
    class_sizes,
    exceptions,
    function_sizes,
    modules,
    shown,
    signature_sizes,
)


class Limit(NamedTuple):
    """What STYLE asks for, what no exception may pass, and how far a size may fall below its exception."""

    aim: int
    most: int
    room: int


LIMITS = {
    "modules": Limit(300, 500, 40),
    "functions": Limit(50, 80, 10),
    "classes": Limit(15, 20, 0),
    "signatures": Limit(6, 8, 0),
}


def sizes_of(kind: str) -> dict[str, int]:
    """Return place -> size; of things that share a name in a file (overloads, small closures) the largest."""
    if kind == "modules":
        return {shown(path): len(path.read_text().splitlines()) for path in modules()}
    measure = {"functions": function_sizes, "classes": class_sizes, "signatures": signature_sizes}[kind]
    sizes: dict[str, int] = {}
    for path in modules():
        for name, size in measure(path.read_text()):
            place = f"{shown(path)}::{name}"
            sizes[place] = max(size, sizes.get(place, 0))
    return sizes


def oversized(sizes: dict[str, int], limit: Limit, allowed: dict[str, int]) -> list[str]:
    """Return what breaks the size rule: over the limit, over the aim without an entry, or an entry that is too high."""
    found = []
    for place, size in sorted(sizes.items()):
        most = min(allowed.get(place, limit.aim), limit.most)
        if size > most:
            found.append(f"{place}: {size}, at most {most}")
    for place, most in sorted(allowed.items()):
        size = sizes.get(place, 0)
        if size <= limit.aim or size < most - limit.room:
            found.append(f"{place}: the exception of {most} can shrink, it has {size}")
    return found


@pytest.mark.parametrize("kind", LIMITS)
def test_source_is_in_small_pieces(kind: str) -> None:
    assert oversized(sizes_of(kind), LIMITS[kind], exceptions()[kind]) == []


def test_exceptions_name_files_that_exist() -> None:
    places = [place.split("::")[0] for kind in LIMITS for place in exceptions()[kind]]
    assert [place for place in places if not (ROOT / place).is_file()] == []


@pytest.mark.parametrize(
    ("sizes", "allowed"),
    [
        ({"a.py": 301}, {}),
        ({"a.py": 501}, {"a.py": 510}),
        ({"a.py": 420}, {"a.py": 400}),
        ({"a.py": 300}, {"a.py": 320}),
        ({"a.py": 350}, {"a.py": 400}),
        ({}, {"gone.py": 400}),
    ],
)
def test_size_rule_bites(sizes: dict[str, int], allowed: dict[str, int]) -> None:
    assert len(oversized(sizes, LIMITS["modules"], allowed)) == 1


def test_size_rule_accepts_a_listed_module() -> None:
    assert oversized({"a.py": 300, "b.py": 400}, LIMITS["modules"], {"b.py": 410}) == []


def test_function_lines_are_counted_per_method() -> None:
    source = "class A:\n    def f(self):\n        x = 1\n        return x\n\n\ndef g():\n    def h():\n        pass\n"
    assert dict(function_sizes(source)) == {"A.f": 3, "g": 3, "g.h": 2}


def test_methods_are_counted_without_properties_and_private_ones() -> None:
    source = "class A:\n    def m(self): ...\n    @property\n    def p(self): ...\n    def _q(self): ...\n"
    assert dict(class_sizes(source)) == {"A": 1}


def test_parameters_are_counted_but_not_those_of_commands() -> None:
    signature = "def f(a, b, c, d, e, *, f, g): ..."
    assert dict(signature_sizes(signature)) == {"f": 7}
    assert dict(signature_sizes(f"@app.command()\n{signature}")) == {}
    assert dict(signature_sizes("class A:\n    def f(self, a, b): ...")) == {"f": 2}
