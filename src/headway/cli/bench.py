"""`headway bench`: a load on any OpenAI-compatible server, and what its clients saw."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from headway.bench.load import CLOSED_LOOP, LoadParams, Progress, load
from headway.bench.summary import Summary, Targets, summarise, table
from headway.cli import EXIT_FAILED
from headway.cli.outputs import check_writable, writing
from headway.cli.servers import NoServerError, ServerError, listed_models, server_url
from headway.core.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_NO_ROUTE: Final = "this route is not served there; is it an OpenAI-compatible server, and --endpoint the right one?"
_NO_KEY: Final = "the server wants a key: --api-key or OPENAI_API_KEY"
_HINTS: Final = {
    "connection": "the connection failed or broke; is the server still there?",
    "http_401": _NO_KEY,
    "invalid_api_key": _NO_KEY,
    "http_404": _NO_ROUTE,
    "http_405": _NO_ROUTE,
    "http_501": _NO_ROUTE,
    "unknown_url": _NO_ROUTE,
}
_RATE: Final = "Open loop: Poisson arrivals per second, however many are under way."
_CONCURRENCY: Final = (
    f"Without --rate, closed loop: requests under way at any time ({CLOSED_LOOP} unless given). "
    "With --rate: a cap on them (none unless given); what waits for the cap is not timed."
)


class Run(msgspec.Struct, frozen=True):
    """One stored run: what was asked and what came of it. The API key is left out."""

    load: LoadParams
    targets: Targets
    summary: Summary


def choose_model(given: str | None, url: str, api_key: str | None, note: Callable[[str], None]) -> str:
    """The model to ask for: the only one listed when none is given. Raises ConfigError and ServerError.

    A given name that is not listed is only noted: a server may know more names than it lists.
    """
    try:
        listed = listed_models(url, api_key)
    except NoServerError:
        raise
    except ServerError as error:
        if given is None:
            raise
        note(f"{error}; trying all the same")
        return given
    if given is None:
        if len(listed) == 1:
            return listed[0]
        names = ", ".join(listed) or "no model"
        raise ConfigError(f"{url} lists {names}; name one with --model")
    if given not in listed:
        import difflib

        near = difflib.get_close_matches(given.lower(), {name.lower(): name for name in listed}, n=1)
        found = next((name for name in listed if near and name.lower() == near[0]), None)
        hint = f"; did you mean {found!r}?" if found else f", but {', '.join(listed) or 'no model'}"
        note(f"{url} does not list {given!r}{hint}")
    return given


def loop_line(params: LoadParams) -> str:
    """Say which of rate and concurrency drives the load."""
    if params.rate_per_s is None:
        return f"load       closed loop, {params.concurrency} under way at any time"
    cap = "no cap" if params.concurrency is None else f"at most {params.concurrency} under way"
    return f"load       open loop, {params.rate_per_s:g} arrivals/s, {cap}"


def progress_line(progress: Progress) -> str:
    """Say how far a load is."""
    ended = len(progress.outcomes)
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{ended} of {progress.count} ended, {progress.sent - ended} under way{failed}"


def hints(summary: Summary) -> list[str]:
    """What to do about the errors of a load of which nothing was completed."""
    if summary.completed:
        return []
    return list(dict.fromkeys(_HINTS[code] for code in summary.errors if code in _HINTS))


def _watched(params: LoadParams) -> Progress:
    if not sys.stderr.isatty():
        return load(params, lambda progress: print(progress_line(progress), file=sys.stderr, flush=True), 2.0)

    def redraw(progress: Progress) -> None:
        print(f"\r\x1b[K{progress_line(progress)}", end="", file=sys.stderr, flush=True)

    progress = load(params, redraw, 0.2)
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return progress


def _say(line: str) -> None:
    print(f"headway bench: {line}", file=sys.stderr)


@app.command()
def bench(
    url: Annotated[str, typer.Argument(help="Server, for example http://127.0.0.1:8000")],
    model: Annotated[str | None, typer.Option(help="Model name; unset: the only one that the server lists.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests to send.")] = 50,
    rate: Annotated[float | None, typer.Option(help=_RATE)] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help=_CONCURRENCY)] = None,
    endpoint: Annotated[Literal["chat", "completions", "images"], typer.Option(help="Route to use.")] = "completions",
    prompt_words: Annotated[int, typer.Option(min=1, help="Words per prompt.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens at most.")] = 64,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for exactly max_tokens (vLLM's extension).")] = False,
    size: Annotated[str | None, typer.Option(help="Of pictures, as WIDTHxHEIGHT; unset: the model's.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Bearer key.")] = None,
    ttft_ms: Annotated[float | None, typer.Option(help="Target: time to first token.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(help="Target: time per output token.")] = None,
    e2e_ms: Annotated[float | None, typer.Option(help="Target: whole request.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts and arrivals.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Store the run as JSON.")] = None,
) -> None:
    """Send a load and print TTFT, TPOT, ITL, e2e percentiles, throughput and goodput."""
    check_writable("--out", out)
    if rate is not None and not rate > 0:
        raise ConfigError(f"--rate {rate:g} must be above 0 arrivals per second")
    server = server_url(url)
    try:
        chosen = choose_model(model, server, api_key, _say)
    except ServerError as error:
        _say(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    params = LoadParams(
        url=server,
        model=chosen,
        count=requests,
        rate_per_s=rate,
        concurrency=CLOSED_LOOP if rate is None and concurrency is None else concurrency,
        endpoint=endpoint,
        prompt_words=prompt_words,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        size=size,
        api_key=api_key,
        seed=seed,
    )
    _measure(params, Targets(ttft_ms, tpot_ms, e2e_ms), out)


def _measure(params: LoadParams, targets: Targets, out: Path | None) -> None:
    progress = _watched(params)
    summary = summarise(progress.ordered(), targets)
    print(loop_line(params))
    print(table(summary))
    if summary.sent < params.count:
        _say(f"interrupted: {summary.sent} of {params.count} requests had ended and are counted")
    for hint in hints(summary):
        _say(hint)
    if out is not None:
        stored = Run(msgspec.structs.replace(params, api_key=None), targets, summary)
        with writing("--out", out):
            out.write_bytes(msgspec.json.format(msgspec.json.encode(stored)))
    if not summary.completed or summary.sent < params.count:
        raise typer.Exit(EXIT_FAILED)
