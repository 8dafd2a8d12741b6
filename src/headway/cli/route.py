"""`headway route explain`: where a running server would send a request, and why."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from headway.cli import EXIT_FAILED
from headway.cli.servers import DEFAULT_URL, ServerError, Url, ask, server_url
from headway.cli.tables import table_text, width_shown
from headway.core.decisions import Explained
from headway.core.errors import ConfigError

app = typer.Typer(
    help="Explain where a running server would send a request.", add_completion=False, rich_markup_mode=None
)

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
_IN_SECONDS: Final = ("CostAware",)
_TITLES: Final = (
    "TTFT s",
    "hit tokens",
    "requests",
    "queued tokens",
    "KV used",
    "belief age s",
    "room",
    "reason",
)


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
    output_tokens_likely: int | None = None


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


def text(answer: Answer, width: int | None = None) -> str:
    """Return the scores: one row per replica, best first, or a block each where `width` columns are too few.

    Parts are in seconds for `cost_aware`; other policies score in units of their own.
    """
    count = answer.output_tokens
    planned = f"{count} output token{'' if count == 1 else 's'} planned with"
    if answer.output_tokens_likely is None and not count:
        planned = "no output tokens"
    elif answer.output_tokens_likely is None:
        planned += " at admission (how many are likely is not known yet: a policy may count with more)"
    head = (
        f"{answer.model}: {answer.prompt_tokens} prompt tokens, {planned}, "
        f"policy {answer.policy}; admission: {answer.verdict} ({answer.verdict_reason})"
    )
    unit = " s" if answer.policy in _IN_SECONDS else ""
    names = list(dict.fromkeys(name for each in answer.replicas for name, value in each.parts.items() if value))
    parts = [f"{name}{unit}" for name in names]
    titles = ["replica", f"score{unit}", *parts, *_TITLES]
    rows = [titles, *(_row(each, names) for each in answer.replicas)]
    numbers = range(1, len(titles) - 2)
    return f"{head}\n\n{table_text(rows, numbers, width)}"


def _row(each: Explained, names: Sequence[str]) -> list[str]:
    spread = f"±{each.queued_tokens_spread}" if each.queued_tokens_spread else ""
    return [
        each.replica,
        "-" if each.score is None else f"{each.score:.4g}",
        *[f"{each.parts[name]:.3f}" if name in each.parts else "-" for name in names],
        "-" if each.ttft_s is None else f"{each.ttft_s:.3f}",
        str(each.hit_tokens),
        str(each.requests),
        f"{each.queued_tokens}{spread}",
        f"{each.kv_usage:.0%}",
        f"{each.age_s:.2f}",
        "yes" if each.has_room else "no",
        each.reason if each.place is None or not each.parts else "",
    ]


@app.callback()
def route() -> None:
    """Explain where a running server would send a request."""


@app.command("explain")
def explain(
    request: Annotated[Path, typer.Argument(help="JSON file with the body of a request; - reads standard input.")],
    url: Url = DEFAULT_URL,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="An admin key, if there is one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Print the score table of the current fleet for one request. Nothing is run."""
    try:
        given = sys.stdin.buffer.read() if str(request) == "-" else request.read_bytes()
    except OSError as error:
        raise ConfigError(f"{request}: {error.strerror}") from None
    body = msgspec.json.encode(question(given, str(request)))
    try:
        said = ask(server_url(url), "/v1/route/explain", api_key, sent=body)
    except ServerError as error:
        typer.echo(f"headway route explain: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        typer.echo(said.decode())
        return
    typer.echo(text(msgspec.json.decode(said, type=Answer), width_shown()))
