"""Having sizes warmed at a replica."""

import asyncio
import hashlib
from collections.abc import Sequence

import msgspec
import pytest
from tests.unit.adapters.gateway.fakes import MODEL, Client, Reply
from tests.unit.adapters.gateway.pictures.fakes import FILMER, PAINTER, TOY, Painter

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.ports import Stats
from headway.adapters.gateway.settings import ApiKey, AuthSettings, GatewaySettings
from headway.core.ids import NodeId
from headway.core.reports import PreparationFailure, ReplicaFigures, ShapePreparation
from headway.core.request import DenoiseShape
from headway.core.units import NS_PER_S


def digest(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


KEYED = GatewaySettings(
    auth=AuthSettings(keys=(ApiKey(digest("sk-a"), "a"), ApiKey(digest("sk-root"), "ops", admin=True)))
)


class Studio(Painter):
    """Has a replica of every model."""

    preparing: tuple[ShapePreparation, ...] = ()  # of each
    unprepared: tuple[PreparationFailure, ...] = ()

    def stats(self) -> Stats:
        models = (MODEL, PAINTER, FILMER)
        there = tuple(
            ReplicaFigures(NodeId(f"rep-{n}"), "ready", (model,), preparing=self.preparing, unprepared=self.unprepared)
            for n, model in enumerate(models)
        )
        return msgspec.structs.replace(super().stats(), replicas=there)


def asked(serving: Studio, replica: str, body: object, key: str = "sk-root") -> Reply:
    client = Client(build_app(serving, {MODEL: TOY}, KEYED))
    path, headers = f"/v1/replicas/{replica}/warm", {"authorization": f"Bearer {key}"}
    return asyncio.run(client.call("POST", path, body, headers))


def listed(serving: Studio) -> list[dict[str, object]]:
    client = Client(build_app(serving, {MODEL: TOY}, KEYED))
    reply = asyncio.run(client.call("GET", "/v1/replicas", None, {"authorization": "Bearer sk-root"}))
    found: list[dict[str, object]] = reply.json()["data"]
    return found


def assert_error(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.json()["error"]["code"]) == (status, code)


def warmed(body: object, replica: str) -> Sequence[DenoiseShape]:
    serving = Studio()
    answer = asked(serving, replica, body)
    assert answer.status == 200, answer.json()
    ((node, shapes),) = serving.warmed
    assert node == replica
    assert answer.json() == {
        "id": replica,
        "object": "replica.warming",
        "sizes": [{"size": f"{shape.width}x{shape.height}", "frames": shape.frames} for shape in shapes],
    }
    return shapes


# SPEC F8
def test_an_admin_has_sizes_warmed() -> None:
    shapes = warmed({"sizes": ["64x64", "128x96", "64x64"]}, "rep-1")
    assert shapes == (DenoiseShape(64, 64, 1, 2), DenoiseShape(96, 128, 1, 2))
    lengths = [shape.frames for shape in warmed({"sizes": ["64x64"]}, "rep-2")]
    assert lengths == [8, 16, 24]  # of 4, 8 and 12 s
    assert [shape.frames for shape in warmed({"sizes": ["64x64"], "seconds": [8]}, "rep-2")] == [16]


@pytest.mark.parametrize(
    ("replica", "body", "status", "code"),
    [
        ("rep-9", {"sizes": ["64x64"]}, 404, "replica_not_found"),
        ("rep-0", {"sizes": ["64x64"]}, 400, "invalid_value"),  # makes text
        ("rep-1", {"sizes": []}, 400, "invalid_value"),
        ("rep-1", {"sizes": ["60x60"]}, 400, "invalid_value"),
        ("rep-1", {"sizes": ["4096x4096"]}, 400, "invalid_value"),
        ("rep-1", {"sizes": [f"64x{8 * n}" for n in range(8, 100)]}, 400, "invalid_value"),
        ("rep-1", {"sizes": ["64x64"], "seconds": [4]}, 400, "invalid_value"),
        ("rep-2", {"sizes": ["64x64"], "seconds": [5]}, 400, "invalid_value"),
        ("rep-2", {"sizes": ["64x64"], "seconds": [4] * 65}, 400, "invalid_value"),  # each is run with every size
        ("rep-1", {}, 400, "missing_required_parameter"),
    ],
)
def test_what_cannot_be_warmed_is_refused(replica: str, body: object, status: int, code: str) -> None:
    serving = Studio()
    assert_error(asked(serving, replica, body), status, code)
    assert serving.warmed == []


def test_only_an_admin_has_sizes_warmed() -> None:
    serving = Studio()
    assert_error(asked(serving, "rep-1", {"sizes": ["64x64"]}, "sk-a"), 403, "admin_only")
    assert serving.warmed == []


# SPEC F8: what runs or waits to run is told, and bounded.
def test_what_is_prepared_is_shown_and_too_much_is_refused() -> None:
    serving = Studio()
    serving.preparing = (ShapePreparation(96, 64, 1, 2, "running", 1, 2, 3),)
    preparing = {
        "size": "64x96",
        "frames": 1,
        "batch": 2,
        "state": "running",
        "slices_done": 1,
        "slices": 2,
        "waiting": 3,
    }
    assert listed(serving)[1]["preparing"] == [preparing]
    serving.preparing = tuple(ShapePreparation(64, 8 * n, 1, 1, "queued", 0, 2, 0) for n in range(64))
    assert_error(asked(serving, "rep-1", {"sizes": ["128x128"]}), 429, "queue_full")
    assert serving.warmed == []


def test_what_could_not_be_prepared_is_shown_with_its_reason_and_age() -> None:  # SPEC F8
    serving = Studio()
    serving.unprepared = (PreparationFailure(96, 64, 1, 2, "no room", serving.now_ns() - NS_PER_S),)
    (shown,) = listed(serving)[1]["preparing_failed"]  # type: ignore[misc]  # JSON
    assert shown.pop("age_ms") >= 1000
    assert shown == {"size": "64x96", "frames": 1, "batch": 2, "error": "no room"}
