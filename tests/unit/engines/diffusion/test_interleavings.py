"""Any order of beginnings, batches, interruptions, cancels and deaths: every request gets the pixels it gets alone."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.engines.diffusion.asks import STEPS, asked, made, pixels

from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import Content, DiffusionRequest
from headway.engines.diffusion.engine import DiffusionEngine, RunSettings

PROMPTS = ("a red circle", "a blue square on white", "the background")
ASKED = [
    asked(seed=seed, n=n, deterministic=False, content=Content(prompt))
    for seed, (prompt, n) in enumerate(zip(PROMPTS, (1, 2, 1), strict=True))
]
MOVES = st.lists(
    st.tuples(st.sampled_from(["step", "step", "begin", "interrupt", "cancel", "die"]), st.integers(0, 7)), max_size=24
)


class World:
    """What a scheduler would keep: which requests run, how far they are, what was saved of them."""

    def __init__(self, make: Callable[[], DiffusionEngine]) -> None:
        self.make, self.engine = make, make()
        self.running: dict[int, tuple[int, int]] = {}  # request -> (sequence, steps done)
        self.saved: dict[int, tuple[int, bytes]] = {}
        self.left: list[int] = []
        self.waiting = list(range(len(ASKED)))
        self.pictures: dict[int, list[bytes]] = {}
        self.seq = 0

    def plan(self, which: list[int], new: tuple[NewDenoise, ...] = (), save: tuple[int, ...] = ()) -> None:
        rows = tuple(DenoiseRow(*self.running[n], 1, STEPS, ASKED[n].n) for n in which)
        done = self.engine.run(DenoisePlan(1, 0, rows, 32, 32, tuple(self.left), new=new, save=save))
        assert not done.failed, done.failed
        self.left.clear()
        bodies = {row.seq: row.made for row in done.made}
        for n in which:
            seq, steps = self.running[n]
            self.running[n] = seq, steps + 1
            if steps + 1 == STEPS:
                del self.running[n]
                self.pictures[n] = [each.body for each in bodies[seq]]
            elif seq in save:
                self.saved[n] = steps + 1, bodies[seq][0].body

    def begin(self, n: int) -> NewDenoise:
        self.seq += 1
        done, checkpoint = self.saved.get(n, (0, b""))
        self.running[n] = self.seq, done
        self.waiting.remove(n)
        request: DiffusionRequest = msgspec.structs.replace(ASKED[n], begun=done, checkpoint=checkpoint)
        return NewDenoise(self.seq, request)

    def give_up(self, n: int) -> None:
        self.left.append(self.running.pop(n)[0])
        self.waiting.append(n)

    def move(self, kind: str, number: int) -> None:
        runs = sorted(self.running)
        match kind:
            case "begin" if self.waiting:
                new = self.begin(self.waiting[number % len(self.waiting)])
                self.plan(sorted(self.running), (new,))
            case "step" if runs:
                self.plan([n for n in runs if number >> n & 1] or runs)
            case "interrupt" if runs:
                n = runs[number % len(runs)]
                self.plan(runs, save=(self.running[n][0],))
                if n in self.running:
                    self.give_up(n)
            case "cancel" if runs:
                n = runs[number % len(runs)]
                self.give_up(n)
                self.saved.pop(n, None)  # who comes again begins again
            case "die":
                self.engine, self.left = self.make(), []
                self.waiting, self.running = [*self.waiting, *runs], {}

    def finish(self) -> None:
        while self.waiting or self.running:
            self.move("begin" if self.waiting else "step", 0)


@pytest.fixture(scope="module")
def alone(loaded: Any) -> list[list[np.ndarray]]:
    return [
        [
            pixels(each.body).astype(int)
            for each in made(DiffusionEngine(loaded("flux"), RunSettings(), lambda: 0), request)
        ]
        for request in ASKED
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(moves=MOVES)
def test_pixels_are_those_of_each_request_alone(
    moves: list[tuple[str, int]], alone: list[list[np.ndarray]], engine: Callable[..., DiffusionEngine]
) -> None:
    world = World(lambda: engine("flux"))
    for kind, number in moves:
        world.move(kind, number)
    world.finish()
    assert world.engine.held == 0
    for n, theirs in enumerate(alone):
        ours = [pixels(body) for body in world.pictures[n]]
        assert len(ours) == len(theirs)
        assert max(np.abs(a - b).max() for a, b in zip(theirs, ours, strict=True)) <= 1
