"""Idle gap and overlap ratio of the real engine, from the evidence, with asynchronous scheduling on and off.

    python benchmarks/overlap.py [--runs 3] [--requests 16] [--tokens 64] [--model NAME] [--threads N]

Starts `headway serve` once per run, the two settings in turn, and sends the same requests at once to each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

PROMPT = "The lighthouse keeper counted the ships every evening and wrote their names in a book. "


@contextmanager
def serving(arguments: list[str]) -> Iterator[str]:
    """Run a server; yields its URL."""
    command = [sys.executable, "-c", "from headway.cli import main; main()", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready: "):
            raise SystemExit(f"`headway serve {' '.join(arguments)}` did not start; run it to see why")
        try:
            yield line.split()[1]
        finally:
            process.terminate()


def call(url: str, body: object | None = None, request_id: str | None = None) -> dict[str, object]:
    """One request; its JSON answer."""
    headers = {"content-type": "application/json"}
    if request_id is not None:
        headers["x-request-id"] = request_id
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=600) as answer:
        return json.loads(answer.read())


def load(url: str, requests: int, tokens: int) -> list[dict[str, object]]:
    """Send the requests at once; return their evidence."""
    model = call(f"{url}/v1/models")["data"][0]["id"]

    def ask(number: int) -> None:
        body = {
            "model": model, "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
            "messages": [{"role": "user", "content": f"{number} {PROMPT * (1 + number % 4)}"}],
        }  # fmt: skip
        call(f"{url}/v1/chat/completions", body, f"overlap-{number}")

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(requests)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    return [call(f"{url}/v1/requests/overlap-{number}/evidence") for number in range(requests)]


def steps(url: str) -> dict[str, float]:
    """Figures per engine step, from the trace."""
    events = call(f"{url}/debug/trace?seconds=300")["traceEvents"]
    device = [event for event in events if event["ph"] == "X" and "idle_gap_us" in event.get("args", {})]
    plans = [event["dur"] for event in events if event["ph"] == "X" and event["name"].startswith("plan ")]
    busy = sum(event["dur"] for event in device)
    gaps = sum(event["args"]["idle_gap_us"] for event in device)
    return {
        "steps": len(device),
        "step ms": busy / len(device) / 1e3,
        "plan us": statistics.mean(plans),
        "idle gap us": gaps / len(device),
        "idle %": 100 * gaps / (busy + gaps),
    }


def main() -> None:
    """Print one line per run and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    extra = ["--model", options.model] if options.model else []
    extra += ["--set", f"engine.threads={options.threads}"] if options.threads else []
    results: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    for run in range(options.runs):
        for name, depth in (("off", 1), ("on", 2)):
            with serving([*extra, "--set", f"scheduler.async_depth={depth}"]) as url:
                evidence = load(url, options.requests, options.tokens)
                figures = steps(url)
            figures["idle_gap_ms"] = statistics.median(record["idle_gap_ms"] for record in evidence)
            figures["overlap_ratio"] = statistics.median(record["overlap_ratio"] for record in evidence)
            figures["tpot_ms"] = statistics.median(record["tpot_ms"] for record in evidence)
            results[name].append(figures)
            print(f"run {run} overlap {name:<3}", {key: round(value, 3) for key, value in figures.items()}, flush=True)
    for name, runs in results.items():
        print(f"median overlap {name:<3}", {key: round(statistics.median(r[key] for r in runs), 3) for key in runs[0]})


if __name__ == "__main__":
    main()
