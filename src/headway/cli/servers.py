"""The server that a command talks to: its address as people type it, and what it answers as one line."""

import json
import re
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
import typer

from headway.core.errors import ConfigError, HeadwayError

DEFAULT_URL: Final = "http://127.0.0.1:8000"
Url = Annotated[str, typer.Option("--url", envvar="HEADWAY_URL", help="Of the running server.")]
_SHOWN_CHARS: Final = 200


class ServerError(HeadwayError):
    """A server that answers something else than what was asked."""


class NoServerError(ServerError):
    """Nobody answers at an address."""


class _Model(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Model]


def server_url(given: str) -> str:
    """`localhost:8000/v1/` -> `http://localhost:8000`. Raises ConfigError for what is no address of a server."""
    text = given.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{given!r} is no address of a server: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{given!r} is no address of a server; write it like http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def listed_models(url: str, api_key: str | None) -> list[str]:
    """The models that a server lists. Raises ServerError."""
    body = ask(url, "/v1/models", api_key, timeout_s=10.0)
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Listing).data]
    except msgspec.DecodeError:
        raise ServerError(f"{url}/v1/models answered 200, but no list of models: {said(body)}") from None


def ask(url: str, path: str, api_key: str | None, timeout_s: float = 60.0, sent: bytes | None = None) -> bytes:
    """GET a path of a server, or POST JSON to it. Raises ServerError with one line for anything but an answer."""
    import http.client  # `--help` asks no server
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url + path, data=sent)
    if sent is not None:
        request.add_header("content-type", "application/json")
    if api_key:
        request.add_header("authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        raise ServerError(f"{url}{path} answered {error.code}: {said(error.read())}") from None
    except http.client.HTTPException as error:
        raise NoServerError(f"the server at {url} broke off: {type(error).__name__}: {error}") from None
    except (OSError, ValueError) as error:
        hint = "; name another with --url or HEADWAY_URL" if url == DEFAULT_URL else ""
        raise NoServerError(f"no server at {url}: {getattr(error, 'reason', error)}{hint}") from None


def said(body: bytes) -> str:
    """The message of an OpenAI error; else that it is none, with the beginning of plain text."""
    text = body.decode(errors="replace").strip()
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = None
    if isinstance(message, str):
        return " ".join(message.split())
    if re.match(r"<(!doctype|html|\?xml)", text, re.IGNORECASE):
        return "a web page, so this is no such server"
    line = " ".join(text.split())
    return (line[:_SHOWN_CHARS] + ("…" if len(line) > _SHOWN_CHARS else "")) or "nothing"
