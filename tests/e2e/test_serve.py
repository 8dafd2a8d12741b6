import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from tests.e2e.serving import HEADWAY, children, environment, is_alive, serve, until

SYNTHETIC = ("--engine", "synthetic")
CHAT = "/v1/chat/completions"
BODY = {"model": "synthetic", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


def test_without_a_file_one_ready_line_says_all_and_its_curl_works() -> None:
    # SPEC M1
    with serve(*SYNTHETIC) as server:
        assert len(server.out) == 1
        assert "serves synthetic" in server.out[0]
        command = server.out[0].partition("try: ")[2]
        assert command.startswith(f"curl -s {server.url}{CHAT} ")
        if shutil.which("curl") is None:
            pytest.skip("no curl on this machine")
        answer = subprocess.run(command, shell=True, capture_output=True, check=True, timeout=60)
        assert json.loads(answer.stdout)["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_and_leaves_no_process(number: signal.Signals) -> None:
    with serve(*SYNTHETIC, "--replicas", "2") as server:
        replicas = children(server)
        assert len(replicas) == 2
        server.process.send_signal(number)
        assert server.end() == 0
        assert not any(is_alive(pid) for pid in replicas)
        assert not any("Traceback" in line for line in server.errors), server.errors
        assert len(server.out) == 1


def test_replicas_end_with_a_parent_that_was_killed() -> None:
    with serve(*SYNTHETIC, "--replicas", "2") as server:
        replicas = children(server)
        server.process.kill()
        until(lambda: not any(is_alive(pid) for pid in replicas), "the replicas are gone")


def test_an_answer_under_way_is_finished_before_the_end() -> None:
    # SPEC A11
    with serve(*SYNTHETIC, "--set", "engine.synthetic.step_us=20000") as server:
        answers: list[tuple[int, bytes]] = []
        body = {**BODY, "max_tokens": 40, "ignore_eos": True}
        asker = threading.Thread(target=lambda: answers.append(server.call(CHAT, body)))
        asker.start()
        until(lambda: any("kv_blocks" in name for name in server.held()), "it runs")
        server.process.send_signal(signal.SIGTERM)
        asker.join(30)
        assert answers[0][0] == 200
        assert json.loads(answers[0][1])["usage"]["completion_tokens"] == 40
        assert server.end() == 0


def test_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*HEADWAY, "serve", *SYNTHETIC, "--port", port],
            capture_output=True, text=True, env=environment(), timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "scheduler.max_seq=3"), "did you mean `scheduler.max_seqs`?"),
        (("--set", "scheduler.step_tokens=8"), "below max_seqs"),
        (("--set", "front.router.type=nearest"), "known are"),
        (("--model", "no such folder", "--engine", "torch"), "no such folder"),
    ],
)
def test_what_cannot_work_is_refused_with_the_key(arguments: tuple[str, ...], words: str) -> None:
    # SPEC M1
    with serve(*SYNTHETIC, *arguments) as server:
        assert server.end() in (1, 2)
        told = "\n".join(server.errors)
        assert words in told
        assert "Traceback" not in told


def test_the_synthetic_engine_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    with serve(*SYNTHETIC, PYTHONPATH=str(tmp_path)) as server:
        assert server.call(CHAT, BODY)[0] == 200


def test_without_torch_the_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    with serve(PYTHONPATH=str(tmp_path)) as server:
        assert server.end() == 1
        assert "headway doctor" in "\n".join(server.errors)


def test_a_replica_killed_under_load_costs_no_answer() -> None:
    # SPEC A11
    with serve(*SYNTHETIC, "--replicas", "2", "--set", "engine.synthetic.step_us=5000") as server:
        answers: list[int] = []
        body = {**BODY, "max_tokens": 100, "ignore_eos": True}
        askers = [threading.Thread(target=lambda: answers.append(server.call(CHAT, body)[0])) for _ in range(16)]
        for asker in askers:
            asker.start()
        until(lambda: any("rep-0/kv_blocks" in name for name in server.held()), "rep-0 works")
        os.kill(children(server)[0], signal.SIGKILL)
        for asker in askers:
            asker.join(60)
        assert answers == [200] * 16
        until(lambda: not server.held(), "the ledger is back to zero")


def test_a_trace_of_the_last_seconds_is_exported(tmp_path: Path) -> None:
    # SPEC I4, E5
    with serve(*SYNTHETIC) as server:
        assert server.call(CHAT, BODY)[0] == 200
        until(lambda: b'"device"' in server.call("/debug/trace?seconds=60")[1], "the steps are told")
        output = tmp_path / "trace.json"
        done = subprocess.run(
            [*HEADWAY, "trace", "export", "--url", server.url, "--seconds", "60", "-o", str(output)],
            capture_output=True, text=True, env=environment(), timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        events = json.loads(output.read_text())["traceEvents"]
        named = {(e["pid"], e.get("tid", 0)): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        lanes = {named[e["pid"], e["tid"]] for e in events if e["ph"] in ("X", "i")}
        assert {"device", "host: schedule", "decisions", "load"} <= lanes
        segments = {e["name"] for e in events if e["ph"] == "b"}
        assert {"prefill", "decode", "stream_output"} <= segments
