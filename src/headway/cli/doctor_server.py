"""What `headway doctor` looks at beside the machine: the configuration, and the server at its address."""

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headway.cli.doctor_replicas import ReplicaState, replicas_at
from headway.cli.servers import ServerError, listed_models, server_url
from headway.core.errors import ConfigError

OF_ENGINES: Final = ("engine.", "executor.")  # keys that a machine may not be able to do
_ANSWERS_S: Final = 5.0


class Setting(msgspec.Struct, frozen=True):
    """What `headway serve` would make of its configuration here. `error`: it cannot be used."""

    port: int
    adjusted: tuple[str, ...] = ()  # keys of engines that run otherwise than they were asked to
    error: str | None = None


class Place(msgspec.Struct, frozen=True):
    """An address. `serves`: the models that a Headway server there lists; None: none answers."""

    url: str
    is_free: bool = True  # to listen on; only asked of this machine
    is_here: bool = True
    serves: tuple[str, ...] | None = None
    state: str = ""  # what it says of itself, where it is not ready or something of it is away
    replicas: tuple[ReplicaState, ...] = ()
    hidden: str = ""  # why nothing is known of these


def setting(config: Path | None, assignments: Sequence[str], default_port: int) -> Setting:
    """Resolve the configuration as `serve` would."""
    from headway.live.config import Host, layers, resolve, set_layer

    try:
        found = resolve(layers(config, os.environ, [set_layer(each) for each in assignments]), Host.here())
    except ConfigError as error:
        return Setting(default_port, error=str(error))
    told = [one for one in found.adjustments if one.key.startswith(OF_ENGINES)]
    asked = {source.key for source in found.sources if source.origin != "default"}
    adjusted = tuple(f"{one.key} = {one.value} ({one.reason})" for one in told if one.key in asked)
    return Setting(found.config.server.port, adjusted)


def place(url: str | None, port: int) -> Place:
    """Look at an address, or at a port of this machine."""
    at = f"http://127.0.0.1:{port}" if url is None else server_url(url)
    is_here = urlsplit(at).hostname in ("127.0.0.1", "localhost", "::1")
    is_free = is_here and port_free(urlsplit(at).port or 80)
    if is_free:
        return Place(at)
    import http.client  # `--help` asks no server

    try:
        if "version" not in json.loads(_get(f"{at}/version")):
            return Place(at, is_free, is_here)
        key = os.environ.get("OPENAI_API_KEY")
        serves, state = tuple(listed_models(at, key)), _unready(at)
        return Place(at, is_free, is_here, serves, state, *replicas_at(at, key))
    except (OSError, ValueError, TypeError, KeyError, http.client.HTTPException, ServerError):  # not one of ours
        return Place(at, is_free, is_here)


def _get(url: str) -> bytes:
    import urllib.request

    with urllib.request.urlopen(url, timeout=_ANSWERS_S) as answer:
        body: bytes = answer.read()
        return body


def _unready(at: str) -> str:
    import urllib.error

    try:
        told = json.loads(_get(f"{at}/ready"))
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read())["error"]["message"])
    degraded = ", ".join(str(one) for one in told.get("degraded", ()))
    return f"degraded: {degraded}; the server's log says why" if degraded else ""


def place_words(at: Place, *, is_asked: bool) -> tuple[str, str, str]:
    """State, finding and advice. Asked: somebody expects a server there."""
    where = f"{at.url}: "
    if at.serves is not None:
        names = ", ".join(at.serves) or "no model yet"
        return "note" if at.state else "ok", f"{where}a Headway server, which serves {names}", at.state
    port = urlsplit(at.url).port
    if not at.is_here or (is_asked and at.is_free):
        return "note", f"{where}no Headway server answers", "start one with `headway serve`, or name another with --url"
    if at.is_free:
        return "ok", f"{port} is free", ""
    return "note", f"{port} is taken by something else than Headway", "serve with --port 8123"


def port_free(port: int) -> bool:
    """Whether this machine's port can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
