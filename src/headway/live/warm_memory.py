"""Shapes that operators or traffic made warm are warm again after a restart (SPEC F8): a file for each diffusion
replica in the state folder, read when the replica is ready, and written when what it tells has changed."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from headway.adapters.gateway.pictures.sizes import pixels_of
from headway.core.errors import RequestError
from headway.core.ids import NodeId
from headway.core.reports import ReplicaReport
from headway.core.request import DenoiseShape
from headway.live.board import Board, Known
from headway.live.config_diffusion import DiffusionSettings, picture_card, probes_of

FOLDER: Final = "warm"  # in the state folder
FILE_BYTES_MAX: Final = 1 << 16
_LOOK_S: Final = 1.0

Side = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
Sides = tuple[int, int, int]  # height, width, frames
Tell = Callable[[NodeId, str], None]
Ask = Callable[[NodeId, tuple[DenoiseShape, ...], tuple[int, ...]], None]  # up to so many pictures of a pass each


class Remembered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape, and the most pictures or videos of it that ran together."""

    height: Side
    width: Side
    frames: Side
    batch: Annotated[int, msgspec.Meta(ge=1, le=4096)]

    @property
    def sides(self) -> Sides:
        """What it is known by."""
        return self.height, self.width, self.frames

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.width}x{self.height}" + (f", {self.frames} frames" if self.frames > 1 else "")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    model: str
    shapes: Annotated[tuple[Remembered, ...], msgspec.Meta(max_length=64)]  # used last at the end


class _Replica:
    """What is remembered of one, used last at the end, and how far it has been asked for."""

    def __init__(self) -> None:
        self.shapes: dict[Sides, Remembered] = {}
        self.is_read = False
        self.asked_of = 0  # incarnation
        self.seen: set[Sides] = set()  # of those asked for: it has told that they are to be prepared
        self.written: tuple[Remembered, ...] | None = None
        self.failure = ""  # of the last write


class WarmMemory:
    """Of the replicas of diffusion models, by what the board knows of them."""

    def __init__(self, models: Sequence[DiffusionSettings], board: Board, folder: Path, ask: Ask, tell: Tell) -> None:
        self._models: Mapping[str, DiffusionSettings] = {model.name: model for model in models}
        self._board, self._folder, self._ask, self._tell = board, folder / FOLDER, ask, tell
        self._replicas: dict[NodeId, _Replica] = {}

    async def run(self) -> None:
        """Look until it is cancelled, and once more then."""
        try:
            while True:
                self.look()
                await asyncio.sleep(_LOOK_S)
        finally:
            self.look()

    def look(self) -> None:
        """Fold in what replicas have told since the last time."""
        for node, known in self._board.replicas.items():
            model, report = self._models.get(known.model), known.report
            if model is not None and model.shapes_kept and report is not None and report.warm is not None:
                self._heard(node, model, known, report)

    def _heard(self, node: NodeId, model: DiffusionSettings, known: Known, report: ReplicaReport) -> None:
        replica = self._replicas.setdefault(node, _Replica())
        if not replica.is_read:
            replica.is_read = True
            replica.shapes = {one.sides: one for one in self._read(node, model)}
            replica.written = tuple(replica.shapes.values())
        if replica.asked_of != known.incarnation:
            replica.asked_of, replica.seen = known.incarnation, set()
            self._wake(node, model, replica)
        self._fold(node, model, replica, report)
        kept = tuple(replica.shapes.values())
        if kept != replica.written:
            replica.written = kept
            self._write(node, replica, _File(1, model.name, kept))

    def _wake(self, node: NodeId, model: DiffusionSettings, replica: _Replica) -> None:
        """Ask for all of it, used last first."""
        if not replica.shapes:
            return
        wanted = list(reversed(replica.shapes.values()))
        passes = model.guided_passes if model.guidance_scale > 1 else 1
        shapes = tuple(DenoiseShape(*one.sides, passes) for one in wanted)
        self._tell(node, f"warms what was warm before: {'; '.join(one.words for one in wanted)}")
        self._ask(node, shapes, tuple(one.batch for one in wanted))

    def _fold(self, node: NodeId, model: DiffusionSettings, replica: _Replica, report: ReplicaReport) -> None:
        configured = _configured(model)
        warm = [
            Remembered(one.height, one.width, one.frames, one.batch)
            for one in report.warm or ()
            if (one.height, one.width, one.frames) not in configured
        ]
        preparing = {(one.height, one.width, one.frames) for one in report.preparing}
        replica.seen |= preparing & replica.shapes.keys()
        for one in warm:  # in the order of their use
            before = replica.shapes.pop(one.sides, one)
            is_whole = one.sides not in preparing
            replica.shapes[one.sides] = one if is_whole or one.batch > before.batch else before
        are_warm = {one.sides for one in warm}
        for sides in [sides for sides in replica.shapes if sides in replica.seen - preparing - are_warm]:
            self._tell(node, f"{replica.shapes.pop(sides).words} was warm before and cannot be prepared now: forgotten")
        for sides in list(replica.shapes)[: max(0, len(replica.shapes) - model.shapes_kept)]:
            del replica.shapes[sides]

    def _read(self, node: NodeId, model: DiffusionSettings) -> list[Remembered]:
        """What its file says that the model makes; what is wrong with it is told."""
        path = self._path(node)
        try:
            with path.open("rb") as file:
                body = file.read(FILE_BYTES_MAX + 1)
            if len(body) > FILE_BYTES_MAX:
                raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
            found = msgspec.json.decode(body, type=_File)
            if found.model != model.name:
                raise ValueError(f"it is of {found.model!r}")
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:  # msgspec's errors are values' errors
            self._tell(node, f"{path} is ignored, no shape of it is warmed: {error}")
            return []
        makes = [one for one in found.shapes if _is_made(one, model)]
        if len(makes) < len(found.shapes):
            left = "; ".join(one.words for one in found.shapes if one not in makes)
            self._tell(node, f"{path}: {left} is not warmed, {model.name} does not make it any more")
        others = [one for one in makes if one.sides not in _configured(model)]
        return others[-model.shapes_kept :]

    def _write(self, node: NodeId, replica: _Replica, said: _File) -> None:
        """A failure is told once, until a write goes well."""
        path = self._path(node)
        partial = path.with_suffix(".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(msgspec.json.encode(said))
            os.replace(partial, path)
        except OSError as error:
            if replica.failure != f"{error}":
                self._tell(node, f"its warm shapes will not be known after a restart: {error}")
            replica.failure = f"{error}"
        else:
            replica.failure = ""

    def _path(self, node: NodeId) -> Path:
        return self._folder / f"{node}.json"


def _configured(model: DiffusionSettings) -> set[Sides]:
    """What is warm before a replica is ready."""
    return {(shape.height, shape.width, shape.frames) for shape, _ in probes_of(model).batches}


def _is_made(one: Remembered, model: DiffusionSettings) -> bool:
    looks = picture_card(model, 0).pictures
    assert looks is not None  # of every model here
    try:
        pixels_of(f"{one.width}x{one.height}", looks, model.name)
    except RequestError:
        return False
    return one.frames in {shape.frames for shape, _ in probes_of(model).batches}
