"""Streaming sessions against `headway serve` over real sockets, from the synthetic engine (SPEC H5).

The server has two gateway processes: a connection may come to either of them, and so may the requests about a session.
"""

import base64
import contextlib
import io
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.e2e.serving import Server, children, serve, until

SESSIONS = "/v1/videos/sessions"
VIDEO = Path(__file__).parents[2] / "models/tiny/video"
FAST, SLOW = "streamer", "slow"
STEPS = 200  # of a slow chunk, of 50 ms each
CHUNKED = "engine='synthetic', context_frames=4, chunk_frames=4"
SETS = (
    "model.replicas=0",
    f"diffusion=[{{name='{FAST}', {CHUNKED}, fps=40, steps=4, synthetic={{step_ms=5, megapixel_ms=0}}}},"
    f" {{name='{SLOW}', {CHUNKED}, fps=4, steps={STEPS}, synthetic={{step_ms=50, megapixel_ms=0}}}}]",
    "server.shutdown_s=1",
    "server.processes=2",
    "upstreams=[{name='nobody', url='http://127.0.0.1:9', kind='vllm'}]",  # what is spread over processes
)
Event = dict[str, object]
STREAMS: list["Stream"] = []  # to be closed


class Stream:
    """One session's connection."""

    def __init__(self, server: Server, model: str, key: str | None = None, **fields: object) -> None:
        self._server = server
        STREAMS.append(self)
        self._http = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        body = {"model": model, "prompt": "a red circle", "seed": 7, **fields}
        headers = {"content-type": "application/json"} | ({} if key is None else {"idempotency-key": key})
        self._http.request("POST", SESSIONS, json.dumps(body), headers)
        self._answer = self._http.getresponse()
        self.refusal = "" if self._answer.status == 200 else json.loads(self._answer.read())["error"]["code"]
        self.id = "" if self.refusal else str(self.next()["id"])

    def next(self) -> Event:
        """The next event; `{}`: `[DONE]`, `{"type": None}`: the stream ended without it."""
        while line := self._answer.readline():
            if line == b"data: [DONE]\n":
                return {}
            if line.startswith(b"data: "):
                event: Event = json.loads(line[6:])
                return event
        return {"type": None}

    def rest(self) -> list[Event]:
        """All that follows, with its end."""
        found = [self.next()]
        while found[-1].get("type") is not None or "error" in found[-1]:
            found.append(self.next())
        return found

    def leave(self) -> None:
        self._http.close()
        self._answer.close()

    def steps_done(self, chunk: int) -> int | None:
        """None while its evidence is not complete."""
        status, body = self._server.call(f"/v1/requests/{self.id}-{chunk}/evidence")
        return json.loads(body)["steps_done"] if status == 200 else None


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(scope="module")
def running(state: Path) -> Iterator[Server]:
    sets = [part for one in SETS for part in ("--set", one)]
    with serve(*sets, HEADWAY_STATE=str(state)) as started:
        yield started
        assert not [line for line in started.errors if "Traceback" in line], started.errors


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    """Each test leaves nothing behind, and all that it used is metered once: as the ledger's meter has it."""
    yield running
    while STREAMS:
        STREAMS.pop().leave()
    if running.process.poll() is None:
        nothing_is_held(running)
        until(
            lambda: spent_s(running) == pytest.approx(ledger_s(running), abs=1e-4),
            lambda: f"metered: {spent_s(running)} s, the ledger says {ledger_s(running)} s",
        )


def usage(server: Server, model: str) -> tuple[int, int, float]:
    """Frames, requests and device seconds so far."""
    rows = [row for row in json.loads(server.call("/v1/usage")[1])["data"] if row["model"] == model]
    names = ("frames", "requests", "gpu_seconds")
    frames, requests, gpu_s = (sum(row[name] for row in rows) for name in names)
    return frames, requests, gpu_s


def spent_s(server: Server) -> float:
    return sum(usage(server, model)[2] for model in (FAST, SLOW))


def ledger_s(server: Server) -> float:
    return sum(one["used"] for one in server.accounts() if one["name"].endswith("/gpu_seconds")) / 1e6


def films(events: list[Event]) -> list[bytes]:
    return [base64.b64decode(str(one["b64_mp4"])) for one in events if one.get("type") == "video.session.chunk"]


def nothing_is_held(server: Server) -> None:
    until(lambda: server.held() == {}, lambda: f"nothing is held: {server.held()}")
    assert json.loads(server.call(SESSIONS)[1])["data"] == []


def deleted(server: Server, session: str) -> None:
    assert delete_of(server, session) == 200


def delete_of(server: Server, session: str) -> int:
    http = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    http.request("DELETE", f"{SESSIONS}/{session}")
    answer = http.getresponse()
    assert answer.status != 200 or json.loads(answer.read())["deleted"] is True
    http.close()
    return answer.status


def test_a_session_is_made_played_metered_and_made_again_alike(server: Server) -> None:
    # SPEC H5, H6, I1
    card = json.loads(server.call(f"/v1/models/{FAST}")[1])
    assert "video" in card["modalities"]
    before = usage(server, FAST)
    asked = {"endpoint": SESSIONS, "body": {"model": FAST, "prompt": "a red circle", "seconds": 1.0}}
    estimate = json.loads(server.call("/v1/estimates", asked)[1])
    assert (estimate["chunks"], estimate["frames"], estimate["realtime"]) == (10, 40, True)
    assert estimate["gpu_seconds"] == pytest.approx(10 * 4 * 0.005, rel=0.5)
    twice, spent = [], []
    for _ in range(2):
        stream = Stream(server, FAST, seconds=1.0)
        events = stream.rest()
        *chunks, completed, end = events
        assert end == {}
        assert [one["index"] for one in chunks] == list(range(10))
        assert [one["first_frame"] for one in chunks] == [4 * k for k in range(10)]
        assert (completed["reason"], completed["chunks"], completed["frames"]) == ("length", 10, 40)
        assert float(str(completed["gpu_seconds"])) > 0
        spent.append(float(str(completed["gpu_seconds"])))
        twice.append(films(events))
        until(lambda: stream.steps_done(9) == 4, "the last chunk has its evidence")  # noqa: B023  # asked at once
        assert stream.steps_done(0) == 4
        evidence = json.loads(server.call(f"/v1/requests/{stream.id}-5/evidence")[1])
        assert sum(evidence["segments"].values()) == pytest.approx(evidence["e2e_ms"], rel=0.01)  # SPEC I2
    assert twice[0] == twice[1]
    assert len(set(twice[0])) == 10

    def metered() -> bool:
        frames, requests, gpu_s = (now - then for now, then in zip(usage(server, FAST), before, strict=True))
        return (frames, requests) == (80, 2) and gpu_s == pytest.approx(sum(spent))  # each chunk once

    until(metered, lambda: f"all frames are metered: {server.call('/v1/usage')[1]!r}")
    text = server.call("/metrics")[1].decode()
    assert f'headway_video_chunks_total{{model="{FAST}"}} 20.0' in text
    nothing_is_held(server)


def test_other_words_count_from_the_chunk_that_was_told(server: Server) -> None:
    # SPEC H5
    stream = Stream(server, SLOW, num_inference_steps=10)
    first = stream.next()
    status, body = server.call(f"{SESSIONS}/{stream.id}", {"prompt": "a blue square"})
    view = json.loads(body)
    assert status == 200
    events = [first, *(stream.next() for _ in range(view["from_chunk"]))]
    assert [one["prompt"] for one in events] == ["a red circle"] * view["from_chunk"] + ["a blue square"]
    deleted(server, stream.id)
    assert stream.rest()[-1] == {}
    nothing_is_held(server)


@pytest.mark.parametrize("how", ["ended", "left"])
def test_who_ends_a_session_or_leaves_it_stops_the_device_within_a_step(server: Server, how: str) -> None:
    # SPEC H5, F7
    stream = Stream(server, SLOW)
    until(lambda: any(one["running"] for one in json.loads(server.call("/v1/replicas")[1])["data"]), "it runs")
    if how == "ended":
        deleted(server, stream.id)
        again = delete_of(server, stream.id)
        assert again in (200, 404)  # it may not be over yet
        *_, completed, end = stream.rest()
        assert (completed["reason"], completed["chunks"], end) == ("stopped", 0, {})
    else:
        stream.leave()
    until(lambda: stream.steps_done(0) is not None, "its evidence is complete")
    assert (stream.steps_done(0) or 0) < STEPS
    nothing_is_held(server)


def test_a_key_makes_a_session_once(server: Server) -> None:
    # SPEC H5
    left = Stream(server, SLOW, "lost")
    assert Stream(server, SLOW, "lost").refusal == "session_open"
    left.leave()
    until(lambda: not json.loads(server.call(SESSIONS)[1])["data"], "it is gone")
    again = Stream(server, SLOW, "lost")  # who lost its connection may ask again
    deleted(server, again.id)
    assert again.rest()[-1] == {}
    assert Stream(server, SLOW, "lost").refusal == "session_over"
    assert Stream(server, FAST, "lost").refusal == "idempotency_conflict"


def test_a_chunk_whose_replica_is_killed_is_made_again_with_the_same_bytes(server: Server) -> None:
    # SPEC H5, A11
    calm = Stream(server, SLOW, seconds=2.0, num_inference_steps=20)
    expected = films(calm.rest())
    assert len(expected) == 2
    stream = Stream(server, SLOW, seconds=2.0, num_inference_steps=20)
    events = [stream.next()]
    victim = children(server)[1]  # the slow model's replica, in the order of the configuration
    until(lambda: json.loads(server.call(f"{SESSIONS}/{stream.id}")[1])["next_chunk"] == 2, "the last chunk is begun")
    os.kill(victim, signal.SIGKILL)
    events += stream.rest()
    assert films(events) == expected
    assert events[-1] == {}
    assert "headway_recovery_total" in server.call("/metrics")[1].decode()
    nothing_is_held(server)


def test_every_process_knows_every_session_and_the_limit_holds_over_all(server: Server) -> None:
    # SPEC H5, A8
    streams = [Stream(server, SLOW) for _ in range(8)]
    for number, stream in enumerate(streams):
        for _ in range(3):  # each on a connection of its own
            status, view = server.call(f"{SESSIONS}/{stream.id}")
            assert (status, json.loads(view)["id"]) == (200, stream.id)
            status, _ = server.call(f"{SESSIONS}/{stream.id}", {"prompt": f"words {number}"})
            assert status == 200
    assert len(json.loads(server.call(SESSIONS)[1])["data"]) == 8
    for _ in range(6):
        status, refused = server.call(SESSIONS, {"model": SLOW, "prompt": "x"})
        assert (status, json.loads(refused)["error"]["code"]) == (429, "quota_exceeded")
    for stream in streams:
        deleted(server, stream.id)
        *_, completed, end = stream.rest()
        assert (completed["reason"], end) == ("stopped", {})


def test_a_server_that_stops_tells_its_sessions(server: Server, state: Path) -> None:
    """The last test of this server: what was being made until its end is metered too."""
    # SPEC H5, H6, A11
    before_s = spent_s(server)
    streams = [Stream(server, SLOW) for _ in range(6)]
    until(lambda: any(one["running"] for one in json.loads(server.call("/v1/replicas")[1])["data"]), "one runs")
    server.process.send_signal(signal.SIGTERM)
    for stream in streams:
        *_, error, end = stream.rest()
        assert isinstance(error["error"], dict), "whichever process its connection came to"
        assert error["error"]["code"] == "shutting_down"
        assert end == {"type": None}
    assert server.end() == 0
    with contextlib.closing(sqlite3.connect(state / "jobs.db")) as table:
        ((device_ns,),) = table.execute("SELECT sum(device_ns) FROM usage").fetchall()
    assert device_ns / 1e9 > before_s


@pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed: no real engine")
def test_the_video_model_of_this_repository_goes_on_from_its_own_frames(tmp_path: Path) -> None:
    # SPEC H5, F1
    model = f"name='{FAST}', folder='{VIDEO}', fps=2, multiple=16, sizes=['64x64'], steps=2, edits=false"
    chunks = "context_frames=4, chunk_frames=4, seconds=[4], scheduler={batch_max=1}"
    sets = [part for one in ("model.replicas=0", f"diffusion=[{{{model}, {chunks}}}]") for part in ("--set", one)]
    with serve(*sets, HEADWAY_STATE=str(tmp_path)) as server:
        twice = [Stream(server, FAST, seconds=6.0, ahead=3, deterministic=True).rest() for _ in range(2)]
        assert twice[0][-1] == {}
        made = films(twice[0])
        assert made == films(twice[1])
        assert [len(frames_in(film)) for film in made] == [one["frames"] for one in twice[0][:-2]]
        assert len(set(made)) == len(made) == 3
        nothing_is_held(server)
        while STREAMS:
            STREAMS.pop().leave()


def frames_in(film: bytes) -> list[object]:
    av = pytest.importorskip("av")
    with av.open(io.BytesIO(film)) as container:
        return list(container.decode(video=0))
