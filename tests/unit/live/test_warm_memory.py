"""Shapes that were warm are asked for again after a restart, and a file that says something else is told."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from headway.core.ids import NodeId
from headway.core.messages import Report
from headway.core.reports import ReplicaReport, ShapePreparation, WarmShape
from headway.core.request import DenoiseShape
from headway.live.board import Board
from headway.live.config_diffusion import DiffusionSettings
from headway.live.stores import TelemetrySettings, Timeline
from headway.live.warm_memory import FILE_BYTES_MAX, WarmMemory

NODE = NodeId("rep-0")
CONFIGURED = WarmShape(64, 64, 1, 4)
WIDE, TALL, LARGE = WarmShape(64, 128, 1, 4), WarmShape(128, 64, 1, 1), WarmShape(128, 128, 1, 2)
MODEL = DiffusionSettings(name="flux", engine="synthetic", size="64x64")


class Server:
    """One life of a server: what its replica tells, what it is asked for, and what people are told."""

    def __init__(self, folder: Path, model: DiffusionSettings = MODEL) -> None:
        self.board = Board({NODE: "flux"}, Timeline(TelemetrySettings()), lambda *_: None)
        self.asked: list[tuple[DenoiseShape, int]] = []
        self.said: list[str] = []
        self.memory = WarmMemory([model], self.board, folder, self._ask, lambda _, words: self.said.append(words))

    def _ask(self, _node: NodeId, shapes: tuple[DenoiseShape, ...], batches: tuple[int, ...]) -> None:
        self.asked += zip(shapes, batches, strict=True)

    def tells(
        self, *warm: WarmShape, preparing: Sequence[WarmShape] = (), incarnation: int = 1
    ) -> list[tuple[DenoiseShape, int]]:
        """A report; return what is asked for then."""
        self.board.replicas[NODE].incarnation = incarnation
        due = tuple(ShapePreparation(one.height, one.width, 1, one.batch, "queued", 0, 2, 0) for one in preparing)
        told = ReplicaReport(NODE, incarnation, 1, 0, "diffusion", "flux", *[0] * 7, warm=(*warm, CONFIGURED))
        self.board.heard(NODE, Report(msgspec.structs.replace(told, preparing=due)))
        self.memory.look()
        asked, self.asked = self.asked, []
        return asked


def shape(one: WarmShape) -> tuple[DenoiseShape, int]:
    return DenoiseShape(one.height, one.width, 1, 2), one.batch


# SPEC F8
def test_what_was_warm_is_asked_for_again_used_last_first(tmp_path: Path) -> None:
    first = Server(tmp_path)
    assert first.tells() == []
    assert first.tells(WIDE, TALL) == []
    again = Server(tmp_path)
    assert again.tells() == [shape(TALL), shape(WIDE)]
    assert again.said == ["warms what was warm before: 64x128; 128x64"]
    assert again.tells(incarnation=2) == [shape(TALL), shape(WIDE)]  # the replica alone was started anew
    assert again.tells(incarnation=2) == []
    assert Server(tmp_path, msgspec.structs.replace(MODEL, shapes_kept=0)).tells() == []


# SPEC F8: a server that is ended while it warms knows the rest at its next start.
def test_what_is_not_warm_yet_is_not_forgotten(tmp_path: Path) -> None:
    Server(tmp_path).tells(WIDE, TALL)
    again = Server(tmp_path)
    again.tells()
    again.tells(preparing=[TALL, WIDE])
    again.tells(msgspec.structs.replace(WIDE, batch=1), TALL, preparing=[WIDE])
    assert Server(tmp_path).tells() == [shape(TALL), shape(WIDE)]


def test_one_that_cannot_be_prepared_is_told_and_forgotten(tmp_path: Path) -> None:
    Server(tmp_path).tells(WIDE, TALL)
    again = Server(tmp_path)
    again.tells()
    again.tells(preparing=[TALL, WIDE])
    again.tells(TALL)
    assert again.said[1:] == ["128x64 was warm before and cannot be prepared now: forgotten"]
    assert Server(tmp_path).tells() == [shape(TALL)]


def test_those_used_longest_ago_are_dropped_beyond_the_bound(tmp_path: Path) -> None:
    two = msgspec.structs.replace(MODEL, shapes_kept=2)
    server = Server(tmp_path, two)
    server.tells(WIDE, TALL)
    server.tells(TALL, WIDE, LARGE)
    assert Server(tmp_path, two).tells() == [shape(LARGE), shape(WIDE)]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "truncated"),
        ('{"version": 2, "model": "flux", "shapes": []}', "Invalid enum value 2"),
        ('{"version": 1, "model": "other", "shapes": []}', "it is of 'other'"),
        ('{"version": 1, "model": "flux", "shapes": [{"height": 0, "width": 8, "frames": 1, "batch": 1}]}', ">= 1"),
        ('{"version": 1, "model": "flux", "shapes": [[]]}', "Expected `object`"),
        (" " * (FILE_BYTES_MAX + 1), "more than 65536 bytes"),
        (None, "directory"),
    ],
)
def test_a_bad_file_is_told_and_ignored(tmp_path: Path, body: str | None, why: str) -> None:
    path = tmp_path / "warm" / f"{NODE}.json"
    if body is None:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir()
        path.write_text(body)
    server = Server(tmp_path)
    assert server.tells() == []
    assert len(server.said) == 1
    assert server.said[0].startswith(f"{path} is ignored, no shape of it is warmed: ")
    assert why in server.said[0]


def test_what_the_model_does_not_make_any_more_is_told_and_left_out(tmp_path: Path) -> None:
    Server(tmp_path).tells(WIDE, TALL)
    again = Server(tmp_path, msgspec.structs.replace(MODEL, sizes=("64x64", "64x128")))
    assert again.tells() == []  # the other one is warm before it is ready, by its configuration
    assert again.said == [f"{tmp_path}/warm/rep-0.json: 128x64 is not warmed, flux does not make it any more"]


def test_a_folder_that_takes_no_file_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "warm").write_text("")
    server = Server(tmp_path)
    server.tells(WIDE)
    assert server.said[-1].startswith("its warm shapes will not be known after a restart: ")
    said = len(server.said)
    server.tells(WIDE, TALL)
    server.tells(TALL, WIDE)
    assert len(server.said) == said


def test_it_looks_once_more_at_the_end(tmp_path: Path) -> None:
    async def short() -> None:
        server = Server(tmp_path)
        task = asyncio.create_task(server.memory.run())
        await asyncio.sleep(0)
        server.board.replicas[NODE].incarnation = 1
        told = ReplicaReport(NODE, 1, 1, 0, "diffusion", "flux", *[0] * 7, warm=(WIDE, CONFIGURED))
        server.board.heard(NODE, Report(told))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(short())
    assert Server(tmp_path).tells() == [shape(WIDE)]
