"""Modules, functions, classes and signatures stay small; exceptions sit in one list that may only shrink."""

import pytest
from tests.arch.rules import (
    FUNCTION_LINES,
    FUNCTION_LINES_MAX,
    MODULE_LINES,
    MODULE_LINES_MAX,
    ROOT,
    Rule,
    crowded_classes,
    exceptions,
    function_sizes,
    long_signatures,
    modules,
    offences,
    shown,
)

# How far a size may fall below its entry before the entry has to follow it down.
ROOM = 40


def module_sizes() -> dict[str, int]:
    return {shown(path): len(path.read_text().splitlines()) for path in modules()}


def all_function_sizes() -> dict[str, int]:
    """Lines of every function; of functions that share a name in a file (properties, overloads) the longest."""
    sizes: dict[str, int] = {}
    for path in modules():
        for name, lines in function_sizes(path.read_text()):
            place = f"{shown(path)}::{name}"
            sizes[place] = max(lines, sizes.get(place, 0))
    return sizes


def oversized(sizes: dict[str, int], aim: int, limit: int, allowed: dict[str, int]) -> list[str]:
    """Return what breaks the size rule: over the limit, over the aim without an entry, or an entry that is too high."""
    found = []
    for place, lines in sorted(sizes.items()):
        most = min(allowed.get(place, aim), limit)
        if lines > most:
            found.append(f"{place}: {lines} lines, at most {most}")
    for place, most in sorted(allowed.items()):
        lines = sizes.get(place, 0)
        if lines <= aim or lines < most - ROOM:
            found.append(f"{place}: the exception of {most} lines can shrink, it has {lines}")
    return found


def test_modules_are_small() -> None:
    assert oversized(module_sizes(), MODULE_LINES, MODULE_LINES_MAX, exceptions()["modules"]) == []


def test_functions_are_small() -> None:
    assert oversized(all_function_sizes(), FUNCTION_LINES, FUNCTION_LINES_MAX, exceptions()["functions"]) == []


@pytest.mark.parametrize("rule", [crowded_classes, long_signatures], ids=lambda rule: rule.__name__)
def test_source_obeys(rule: Rule) -> None:
    assert offences(modules(), rule) == []


def test_exceptions_name_files_that_exist() -> None:
    places = [place.split("::")[0] for kind in ("modules", "functions") for place in exceptions()[kind]]
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
    assert len(oversized(sizes, 300, 500, allowed)) == 1


def test_size_rule_accepts_a_listed_module() -> None:
    assert oversized({"a.py": 300, "b.py": 400}, 300, 500, {"b.py": 410}) == []


def test_function_lines_are_counted_per_method() -> None:
    source = "class A:\n    def f(self):\n        x = 1\n        return x\n\n\ndef g():\n    def h():\n        pass\n"
    assert dict(function_sizes(source)) == {"A.f": 3, "g": 3, "g.h": 2}


def test_crowded_class_is_found() -> None:
    methods = "\n".join(f"    def m{n}(self): ..." for n in range(16))
    assert len(list(crowded_classes(f"class A:\n{methods}\n    def _private(self): ...\n"))) == 1


def test_long_signature_is_found_but_commands_are_exempt() -> None:
    signature = "def f(a, b, c, d, e, *, f, g): ..."
    assert len(list(long_signatures(signature))) == 1
    assert list(long_signatures(f"@app.command()\n{signature}")) == []
    assert list(long_signatures("class A:\n    def f(self, a, b, c, d, e, f): ...")) == []
