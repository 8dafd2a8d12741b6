"""`headway serve`: load a model, print one ready line, answer over HTTP until SIGINT or SIGTERM."""

import asyncio
import json
import logging
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from headway.cli import EXIT_FAILED, EXIT_OK
from headway.cli.starting import Starting, terminal

# `headway serve --help` must not wait for what only serving imports.
if TYPE_CHECKING:
    from headway.live.config import Config
    from headway.live.launch import Running

Tell = Callable[[str, str], None]
log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Engine = Annotated[
    Literal["torch", "synthetic"] | None,
    typer.Option(help="synthetic: no model and no torch, tokens are noise on a fixed clock."),
]


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="TOML file (also $HEADWAY_CONFIG). None is needed.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: any free port.")] = None,
    model: Annotated[str | None, typer.Option(help="A name of `headway models`, a folder, or a hub id.")] = None,
    replicas: Annotated[int | None, typer.Option(min=0, help="Engine processes; 0: only upstreams.")] = None,
    engine: Engine = None,
    assignments: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration; repeatable.")
    ] = [],  # noqa: B006  typer copies it
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the log of every process.")] = False,
) -> None:
    """Serve models over an OpenAI-compatible API; `headway config show` tells what would run."""
    started = time.monotonic()
    starting = Starting(lambda line: typer.echo(stamped(started, "serve", line), err=True), draw=terminal())
    with starting.shown(is_at_once=not sets_log_format(config or os.environ.get("HEADWAY_CONFIG"), assignments)):
        flags = [
            (flag, key, value)
            for flag, key, value in (
                ("--host", "server.host", host),
                ("--port", "server.port", port),
                ("--model", "model.name", model),
                ("--replicas", "model.replicas", replicas),
                ("--engine", "engine.kind", engine),
            )
            if value is not None
        ]
        code = _serve(config, flags, assignments, _Said(started, starting, verbose))
    raise typer.Exit(code)


class _Said(NamedTuple):
    """How lines are printed."""

    started: float
    starting: Starting
    is_verbose: bool


def _serve(
    config: Path | None, given: Sequence[tuple[str, str, object]], assignments: Sequence[str], said: _Said
) -> int:
    """Resolve the configuration and serve; `given`: options with their keys and values."""
    from headway.adapters.telemetry.logs import configure
    from headway.live.config import Host, flag_layer, layers, resolve, set_layer
    from headway.live.loop import run_loop

    flags = [flag_layer(*each) for each in given]
    flags += [set_layer(assignment) for assignment in assignments]
    resolved = resolve(layers(config, os.environ, flags), Host.here())
    log_format = resolved.config.telemetry.log_format
    configure(log_format, logging.INFO if said.is_verbose else logging.WARNING)
    log.setLevel(logging.INFO)

    def tell(who: str, what: str) -> None:
        said.starting.heard(who, what)
        if log_format == "json":
            log.info(what, extra={"replica" if who.startswith("rep-") else "origin": who})
        else:
            typer.echo(stamped(said.started, who, what), err=True)

    said.starting.watch(lambda line: tell("serve", line))
    for adjustment in resolved.adjustments:
        tell("config", f"{adjustment.key} = {adjustment.value} ({adjustment.reason})")
    return run_loop(_run(resolved.config, tell, said.starting))


def stamped(started: float, who: str, what: str) -> str:
    """A line of the start, as text logs have it."""
    return f"[{time.monotonic() - started:6.1f} s] {who}: {what}"


def sets_log_format(config: Path | str | None, assignments: Sequence[str]) -> bool:
    """Whether lines may have to be JSON, which is known for sure only after imports that take long."""
    try:
        given = Path(config).read_text() if config else ""
    except (OSError, ValueError):
        given = ""
    return any("log_format" in text for text in (given, *assignments))


async def _run(config: "Config", tell: Tell, starting: Starting) -> int:
    from headway.core.errors import EngineError
    from headway.live.launch import Running, allow_open_files, find_models
    from headway.live.listening import bind

    allow_open_files()
    try:
        listener = bind(config.server.host, config.server.port, is_shared=config.server.processes > 1)
    except EngineError as error:
        tell("serve", str(error))
        return EXIT_FAILED
    loop = asyncio.get_running_loop()
    starting.does("serve", "looking for its models")
    served = await loop.run_in_executor(None, find_models, config, lambda line: tell("model", line))
    said: list[str] = []

    def heard(who: str, what: str) -> None:
        said.append(what)
        tell(who, what)

    running = Running(config, served, heard)
    starting.loading({node: known.model for node, known in running.live.board.replicas.items()})
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, running, number, config.server.shutdown_s, tell, starting)
    address, port = listener.getsockname()[:2]
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"

    def ready() -> None:
        starting.over()
        typer.echo(ready_line(url, running.models(), running.painters()))

    try:
        await running.run(listener, ready)
    except EngineError as error:
        tell("serve", last_word(str(error), said))
        return EXIT_FAILED
    tell("serve", "stopped")
    return EXIT_OK


def last_word(error: str, said: Sequence[str]) -> str:
    """What ends it, without a reason that a replica has told already."""
    what, _, reason = error.partition(": ")
    return what if reason and any(line.endswith(reason) for line in said) else error


def _stop(running: "Running", number: signal.Signals, limit_s: float, tell: Tell, starting: Starting) -> None:
    """The first signal ends the server in order, the next one at once."""
    starting.over()
    tell("serve", f"{number.name}: finishing what runs, at most {limit_s:g} s; once more to end at once")
    signal.signal(number, signal.SIG_DFL)
    running.stop()


def ready_line(url: str, models: Sequence[str], painters: Mapping[str, str] = MappingProxyType({})) -> str:
    """One line with the address, the models, and a command that gets an answer when pasted into a shell.

    `painters`: which of the models make what (image, video).
    """
    if not models:
        return f"ready: {url} serves no model yet; GET {url}/v1/models lists those of its upstreams when they answer"
    model = models[0]
    body: dict[str, object]
    if model in painters:
        route, prompt = "images/generations", "a large red circle above a small blue square on a white background"
        if painters[model] == "video":
            route, prompt = "videos", "a red circle moving right on a black background"
        body = {"model": model, "prompt": prompt}
    else:
        ask = [{"role": "user", "content": "What is the capital of France?"}]
        route, body = "chat/completions", {"model": model, "messages": ask, "temperature": 0, "max_tokens": 64}
    shown = url.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")
    command = f"curl -s {shown}/v1/{route} -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
    return f"ready: {url} serves {', '.join(models)}; try: {command}"
