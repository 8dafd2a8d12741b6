"""The ring is pure: no clock, no world, no state of its own, no order that comes from a set."""

import pytest
from tests.arch.rules import (
    RING,
    Rule,
    impure_calls,
    impure_imports,
    module_state,
    modules,
    offences,
    set_iteration,
)


@pytest.mark.parametrize("rule", [impure_imports, impure_calls, module_state], ids=lambda rule: rule.__name__)
def test_ring_obeys(rule: Rule) -> None:
    assert offences(modules(*RING), rule) == []


def test_no_decision_comes_from_the_order_of_a_set() -> None:
    assert offences(modules("sched"), set_iteration) == []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (impure_imports, "import time"),
        (impure_imports, "from os import environ"),
        (impure_imports, "def f():\n    import random"),
        (impure_imports, "from numpy import random"),
        (impure_imports, "import numpy as np\nx = np.random.rand()"),
        (impure_imports, "import torch.nn as nn"),
        (impure_calls, "print('x')"),
        (impure_calls, "def f(p):\n    return open(p)"),
        (impure_calls, "def f(key):\n    return hash(key) % 7"),
        (module_state, "seen = {}"),
        (module_state, "cache: dict[str, int] = {}"),
        (module_state, "import collections\nqueue = collections.deque()"),
        (module_state, "seen = [n for n in range(3)]"),
        (module_state, "N = 0\ndef f():\n    global N\n    N = 1"),
        (set_iteration, "for x in {1, 2}:\n    pass"),
        (set_iteration, "def f(xs):\n    return [x for x in set(xs)]"),
        (set_iteration, "def f(xs):\n    return list(set(xs))"),
        (set_iteration, "def f(xs: set[str]):\n    for x in xs:\n        return x"),
        (set_iteration, "def f(xs):\n    ys = {x for x in xs}\n    return [y for y in ys]"),
        (set_iteration, "class A:\n    a: set[int]\n    def f(self):\n        return list(self.a)"),
        (set_iteration, "class A:\n  def f(self):\n    self.a = set()\n  def g(self):\n    return list(self.a)"),
        (set_iteration, "def f(a: frozenset[int], b):\n    for x in a - b:\n        return x"),
    ],
)
def test_rule_bites(rule: Rule, source: str) -> None:
    assert list(rule(source)) != []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (impure_imports, "import dataclasses\nfrom headway.core import ids"),
        (module_state, "LIMITS = {'a': 1}\n__all__ = ['LIMITS']\nN = 3"),
        (module_state, "from typing import Final\ntable: Final = {'a': 1}"),
        (set_iteration, "def f(xs):\n    return sorted(set(xs))"),
        (set_iteration, "def f(xs: set[int]):\n    return any(x > 1 for x in xs)"),
        (set_iteration, "def f(xs: dict[int, int]):\n    return list(xs)"),
    ],
)
def test_rule_lets_clean_code_pass(rule: Rule, source: str) -> None:
    assert list(rule(source)) == []
