"""`headway route explain`: where a running server would send a request, and why."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from headway.cli import EXIT_FAILED
from headway.cli.servers import ServerError, ask, server_url
from headway.core.decisions import Explained
from headway.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="Explain where a running server would send a request.", add_completion=False, rich_markup_mode=None
)

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]


class Question(msgspec.Struct, frozen=True):
    """Body of `POST /v1/route/explain`."""

    endpoint: Endpoint
    body: msgspec.Raw


class Answer(msgspec.Struct, frozen=True):
    """What the server says."""

    model: str
    policy: str
    prompt_tokens: int
    output_tokens: int
    verdict: str
    verdict_reason: str
    replicas: list[Explained]


def question(text: bytes, where: str) -> Question:
    """A file holds the body of a request, or `{endpoint, body}`. Raises ConfigError."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if "endpoint" in fields and "body" in fields:
            return msgspec.json.decode(text, type=Question)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where} is no request: {error}") from None
    if "messages" not in fields and "prompt" not in fields:
        raise ConfigError(f"{where} is no request: it has neither `messages` nor `prompt`")
    return Question("/v1/chat/completions" if "messages" in fields else "/v1/completions", msgspec.Raw(text))


def show(answer: Answer, console: "Console") -> None:
    """Print the score table: one row per replica, best first; parts in seconds for `cost_aware`."""
    from rich.table import Table

    console.print(
        f"{answer.model}: {answer.prompt_tokens} prompt tokens, {answer.output_tokens} output tokens planned with, "
        f"policy {answer.policy}; admission: {answer.verdict} ({answer.verdict_reason})",
        soft_wrap=True,
    )
    names = list(dict.fromkeys(name for each in answer.replicas for name, value in each.parts.items() if value))
    table = Table()
    for title in ("replica", "score", *names, "TTFT s", "hit", "requests", "queued", "KV", "age s", "room", "reason"):
        table.add_column(title, justify="left" if title in ("replica", "reason", "room") else "right")
    for each in answer.replicas:
        table.add_row(
            each.replica,
            "-" if each.score is None else f"{each.score:.4g}",
            *[f"{each.parts[name]:.3f}" if name in each.parts else "-" for name in names],
            "-" if each.ttft_s is None else f"{each.ttft_s:.3f}",
            str(each.hit_tokens),
            str(each.requests),
            f"{each.queued_tokens}±{each.queued_tokens_spread}"
            if each.queued_tokens_spread
            else f"{each.queued_tokens}",
            f"{each.kv_usage:.0%}",
            f"{each.age_s:.2f}",
            "yes" if each.has_room else "no",
            each.reason if each.place is None or not each.parts else "",
        )
    console.print(table)


@app.callback()
def route() -> None:
    """Explain where a running server would send a request."""


@app.command("explain")
def explain(
    request: Annotated[Path, typer.Argument(help="JSON file with the body of a request; - reads standard input.")],
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="An admin key, if there is one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Print the score table of the current fleet for one request. Nothing is run."""
    try:
        text = sys.stdin.buffer.read() if str(request) == "-" else request.read_bytes()
    except OSError as error:
        raise ConfigError(f"{request}: {error.strerror}") from None
    body = msgspec.json.encode(question(text, str(request)))
    try:
        said = ask(server_url(url), "/v1/route/explain", api_key, sent=body)
    except ServerError as error:
        typer.echo(f"headway route explain: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        typer.echo(said.decode())
        return
    from rich.console import Console

    show(msgspec.json.decode(said, type=Answer), Console())
