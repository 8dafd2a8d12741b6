"""Routers side by side: direct, sglang-router, vllm-router and Headway before the same four mock engines.

    python benchmarks/gateway.py --peers VENV/bin [--rounds 3] [--seconds 3] [--modes json,sse] [--connections 32,128]
        [--body-bytes 1024,32768] [--targets direct,sglang-round_robin,...] [--churn-s 20] [--out FILE.jsonl]

Every target is started once; inside each round the targets take turns, in an order that rotates, so that what else
the machine does meets all of them. CPU per request is read from /proc over a target's whole process tree and holds on a
shared machine; times and throughput are compared within a round: `added` is against `direct` of the same round.
`merged` is the share of events that reached the client in one read with another: what a router coalesced.
`--churn-s` then lets clients come, leave in the middle of their streams and come again, and watches resident memory.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ENGINES = 4
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
WARM_S = 0.5
TARGETS = (
    "direct,sglang-round_robin,sglang-cache_aware,vllm-round_robin,vllm-cache_aware,"
    "headway-round_robin,headway-cost_aware"
)
COLUMNS = {
    "rps": "rps",
    "cpu_us": "cpu us/req",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "added_ttft_p50_ms": "+ttft p50",
    "added_ttft_p99_ms": "+ttft p99",
    "gap_p99_ms": "gap p99",
    "merged_share": "merged",
    "errors": "errors",
    "rss_mb": "rss MB",
}


def tree(pid: int) -> list[int]:
    """A process and its children, and theirs."""
    found = [pid]
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                found += tree(int(child))
    except OSError:
        pass  # it has just ended
    return found


def cpu_s(pids: list[int]) -> float:
    """Processor time of processes so far."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / CLOCK_TICKS


def rss_mb(pids: list[int]) -> float:
    """Resident memory of processes now."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * PAGE / 2**20


class Fleet:
    """Every process of the benchmark."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder = given, folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.urls = [f"http://127.0.0.1:{given.base_port + number}" for number in range(ENGINES)]

    def run(self, command: list[str], log: str) -> int:
        """Start a process in the background; return its id."""
        with (self.folder / f"{log}.log").open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        self.processes.append(process)
        return process.pid

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + 8
            while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
                time.sleep(0.1)

    def command(self, target: str, port: int) -> list[str]:
        """The command line of a target."""
        for extra in self.given.command:
            name, _, line = extra.partition("=")
            if name == target:
                return ["bash", "-c", "exec " + line.format(port=port, urls=" ".join(self.urls))]
        kind, _, policy = target.partition("-")
        common = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *self.urls, "--policy", policy]
        common += ["--log-level", "error", "--prometheus-port", str(port + 1000)]
        match kind:
            case "sglang":
                return [f"{self.given.peers}/python", "-m", "sglang_router.launch_router", *common]
            case "vllm":
                return [f"{self.given.peers}/python", f"{self.given.peers}/vllm-router", *common]
            case "headway":
                return self._headway(target, policy, port)
            case _:
                raise SystemExit(f"unknown target {target}; known: {TARGETS}")

    def _headway(self, target: str, policy: str, port: int) -> list[str]:
        lines = [f'[server]\nport = {port}\n[front.router]\ntype = "{policy}"\n']
        for number, url in enumerate(self.urls):
            lines.append(f'[[upstreams]]\nname = "mock-{number}"\nurl = "{url}"\nkind = "openai"\n')
        config = self.folder / f"{target}.toml"
        config.write_text("".join(lines))
        return [sys.executable, "-c", "from headway.cli import main; main()", "serve", "--config", str(config)]


def answers(url: str, seconds: float) -> bool:
    """Whether a server answers a chat request in time."""
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}).encode()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            time.sleep(0.3)
    return False


@contextmanager
def fleet(given: argparse.Namespace) -> Iterator[tuple[Fleet, dict[str, tuple[str, int | None]]]]:
    """Start engines and targets; yields the URL and process of each target that came up."""
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet(given, Path(folder))
        try:
            for number, url in enumerate(made.urls):
                command = [sys.executable, str(HERE / "gateway_backend.py"), "--port", url.rsplit(":", 1)[1]]
                made.run([*command, "--step-ms", str(given.step_ms)], f"engine-{number}")
                if not answers(url, 20):
                    raise SystemExit(f"no mock engine answers on {url}; is --base-port taken?")
            up: dict[str, tuple[str, int | None]] = {}
            for number, target in enumerate(given.targets.split(",")):
                if target == "direct":
                    up[target] = (",".join(made.urls), None)
                    continue
                url = f"http://127.0.0.1:{given.base_port + 1000 + number}"
                pid = made.run(made.command(target, given.base_port + 1000 + number), target)
                if not answers(url, given.start_s):
                    print((made.folder / f"{target}.log").read_text()[-2000:], file=sys.stderr)
                    raise SystemExit(f"{target} does not answer")
                up[target] = (url, pid)
            yield made, up
        finally:
            made.stop()


def client(url: str, *arguments: str) -> dict[str, float]:
    """Run the load client; its figures."""
    command = [sys.executable, str(HERE / "gateway_client.py"), "--urls", url, "--warm", str(WARM_S), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the client failed: {done.stderr[-1000:]}")
    return json.loads(done.stdout)


def measured(target: tuple[str, int | None], given: argparse.Namespace, cell: tuple[str, str, str], seed: int) -> dict:
    """One target in one cell of one round."""
    url, pid = target
    mode, connections, body_bytes = cell
    pids = [] if pid is None else tree(pid)
    before = cpu_s(pids)
    arguments = ["--mode", mode, "--connections", connections, "--body-bytes", body_bytes, "--seed", str(seed)]
    row = client(url, *arguments, "--seconds", str(given.seconds))
    # The warm-up is in the CPU time; its requests are taken to come at the rate of the rest.
    requests = max(1.0, row["ok"] * (given.seconds + WARM_S) / given.seconds)
    row["cpu_us"] = round(1e6 * (cpu_s(pids) - before) / requests, 1) if pids else None
    row["rss_mb"] = round(rss_mb(pids), 1) if pids else None
    return row


def rounds(up: dict[str, tuple[str, int | None]], given: argparse.Namespace, keep: Callable[[dict], None]) -> None:
    """Every cell, the targets in turn."""
    cells = [
        (mode, connections, size)
        for mode in given.modes.split(",")
        for size in given.body_bytes.split(",")
        for connections in given.connections.split(",")
    ]
    names = list(up)
    for number in range(given.rounds):
        for cell in cells:
            turn = number % len(names)
            found: dict[str, dict] = {}
            for name in names[turn:] + names[:turn]:
                found[name] = measured(up[name], given, cell, number)
            for name, row in found.items():
                for key in ("ttft_p50_ms", "ttft_p99_ms"):
                    own, base = row[key], found.get("direct", {}).get(key)
                    row[f"added_{key}"] = None if own is None or base is None else round(own - base, 3)
                about = {"target": name, "mode": cell[0], "connections": int(cell[1]), "body_bytes": int(cell[2])}
                keep({**about, "round": number, "load1": os.getloadavg()[0], **row})


def table(rows: list[dict]) -> str:
    """Medians over the rounds; errors are summed."""
    out = []
    for cell in dict.fromkeys((row["mode"], row["body_bytes"], row["connections"]) for row in rows):
        out.append(f"\n{cell[0]}, {cell[1]} byte prompts, {cell[2]} connections")
        out.append(f"{'target':24}" + "".join(f"{title:>12}" for title in COLUMNS.values()))
        here = [row for row in rows if (row["mode"], row["body_bytes"], row["connections"]) == cell]
        for name in dict.fromkeys(row["target"] for row in here):
            line = f"{name:24}"
            for key in COLUMNS:
                values = [row[key] for row in here if row["target"] == name and row[key] is not None]
                value = sum(values) if key == "errors" else statistics.median(values) if values else "-"
                line += f"{value if isinstance(value, str) else round(value, 3)!s:>12}"
            out.append(line)
    return "\n".join(out)


def churn(up: dict[str, tuple[str, int | None]], given: argparse.Namespace) -> list[dict]:
    """Resident memory while clients come and leave in the middle of their streams."""
    out = []
    for name, (url, pid) in up.items():
        if pid is None or not name.startswith(given.churn_targets):
            continue
        samples: list[float] = []
        left = ok = errors = 0
        deadline, seed = time.monotonic() + given.churn_s, 0
        while time.monotonic() < deadline or len(samples) < 4:
            seed += 1
            arguments = [
                "--mode",
                "sse",
                "--connections",
                given.churn_connections,
                "--leave",
                "0.5",
                "--seed",
                str(seed),
            ]
            span = str(max(1.0, given.churn_s / 20))
            arguments += ["--body-bytes", str((1024, 32768)[seed % 2]), "--seed", str(seed)]
            row = client(url, *arguments, "--seconds", span)
            left, ok, errors = left + int(row["left"]), ok + int(row["ok"]), errors + int(row["errors"])
            samples.append(round(rss_mb(tree(pid)), 1))
        half = samples[len(samples) // 2]
        out.append(
            {
                "target": name, "churn_s": given.churn_s, "ok": ok, "left": left, "errors": errors,
                "rss_mb_first": samples[0], "rss_mb_half": half, "rss_mb_last": samples[-1], "rss_mb_max": max(samples),
                "rss_mb": samples,
            }
        )  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="bin folder of a venv with sglang-router and vllm-router")
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--command", action="append", default=[], help="NAME=LINE: a further target; {port}, {urls}")
    parser.add_argument("--modes", default="json,sse")
    parser.add_argument("--connections", default="32,128")
    parser.add_argument("--body-bytes", default="1024,32768")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--base-port", type=int, default=23100)
    parser.add_argument("--start-s", type=float, default=60.0)
    parser.add_argument("--churn-s", type=float, default=0.0, help="3600 for the hour of the goal")
    parser.add_argument("--churn-connections", default="128")
    parser.add_argument("--churn-targets", default="headway", help="which targets: the beginning of their names")
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    rows: list[dict] = []

    def keep(row: dict) -> None:
        rows.append(row)
        if given.out:
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    with fleet(given) as (_, up):
        if given.rounds:
            rounds(up, given, keep)
            print(table(rows))
        if given.churn_s:
            for row in churn(up, given):
                keep(row)
                print(json.dumps(row))


if __name__ == "__main__":
    main()
