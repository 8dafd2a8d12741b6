"""Reads the body of an image or video request, JSON or form, and what stands in its headers."""

import hashlib
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from headway.adapters.gateway.caller import checked_id
from headway.adapters.gateway.door import MULTIPART, Door, media_type
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.fields import Unsupported
from headway.adapters.gateway.job_ports import IdempotencyKey
from headway.adapters.gateway.parse import parse_body, parse_fields
from headway.adapters.gateway.pictures.checks import Files
from headway.adapters.gateway.pictures.forms import read_form
from headway.adapters.gateway.pictures.schema import NOT_SERVED, DiffusionBody
from headway.core.errors import RequestError

BodyT = TypeVar("BodyT", bound=DiffusionBody)

REPLAYED: Final = (b"idempotent-replayed", b"true")
KEY_CHARS_MAX: Final = 255  # that the job table holds
_FILE_FIELDS: Final = ("images", "input_reference")
_ONCE: Final = ("mask", "image_prompt")


class Read(msgspec.Struct, frozen=True):
    """Pictures that came beside the fields, and the digest of everything that was asked."""

    files: Files
    digest: bytes


def not_served(kind: type[DiffusionBody]) -> Mapping[str, Unsupported]:
    """Return the known fields that bodies of this kind do not have."""
    return {name: entry for name, entry in NOT_SERVED.items() if name not in kind.__struct_fields__}


async def read(door: Door, exchange: Exchange, kind: type[BodyT]) -> tuple[BodyT, Read]:
    """Return the body and what came with it. Raises RequestError, ClientLeft."""
    if media_type(exchange) != MULTIPART:
        raw = await door.large_body(exchange)
        body, files = parse_body(raw, kind, not_served(kind)), Files()
    else:
        form = await read_form(exchange.headers["content-type"], door.form_parts(exchange))
        body, files = parse_fields(form.fields, kind, not_served(kind)), _files(form.files, kind)
    return body, Read(files, digest(exchange.path, body, files))


def _files(files: Mapping[str, list[bytes]], kind: type[DiffusionBody]) -> Files:
    """Raises RequestError for a file that the route has no use for."""
    taken = [name for name in (*_FILE_FIELDS, *_ONCE) if name in kind.__struct_fields__]
    for name, found in files.items():
        if name not in taken:
            sent = "image" if name == "images" else name  # as the form calls it
            raise RequestError(f"This route takes no file `{sent}`.", code="unknown_parameter", param=sent)
        if name in _ONCE and len(found) > 1:
            raise RequestError(f"`{name}` is given twice.", code="invalid_form", param=name)
    pictures = [picture for name in _FILE_FIELDS for picture in files.get(name, ())]
    mask, shown = (files[name][0] if name in files else None for name in _ONCE)
    return Files(tuple(pictures), mask, shown)


def digest(path: str, body: msgspec.Struct, files: Files) -> bytes:
    """Return the hash of what is asked: the same for a form and its repetition under another boundary, and in a later
    version that knows more fields: keys and seeds of before stand for the same."""
    given = msgspec.msgpack.encode(_given(msgspec.to_builtins(body)))
    parts = [path.encode(), given, *files.pictures, files.mask or b""]
    if files.image_prompt is not None:
        parts += [b"image_prompt", files.image_prompt]
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8))
        whole.update(part)
    return whole.digest()


def _given(value: object) -> object:
    """Without the fields that are left out."""
    if isinstance(value, dict):
        return {name: _given(inner) for name, inner in sorted(value.items()) if inner is not None}
    return [_given(inner) for inner in value] if isinstance(value, list) else value


def wants_job(exchange: Exchange) -> bool:
    """True with `prefer: respond-async` (RFC 7240)."""
    wishes = exchange.headers.get("prefer", "").lower().split(",")
    return any(wish.partition(";")[0].strip() == "respond-async" for wish in wishes)


def replayed(exchange: Exchange) -> None:
    """Mark the answer as one that was given before under the same key, as Stripe's API does."""
    exchange.own_headers = [*exchange.own_headers, REPLAYED]


def idempotency(exchange: Exchange, of: bytes) -> IdempotencyKey | None:
    """Return the client's key for a body with that digest. Raises RequestError for one that cannot be kept."""
    given = exchange.headers.get("idempotency-key")
    if given is None:
        return None
    if len(given) > KEY_CHARS_MAX:
        message = f"`idempotency-key` has {len(given)} characters, the limit is {KEY_CHARS_MAX}."
        raise RequestError(message, code="invalid_value", param="idempotency-key")
    return IdempotencyKey(checked_id(given, "idempotency-key", KEY_CHARS_MAX), of)


def origin(exchange: Exchange, public_url: str | None) -> str:
    """Return the address under which the client reaches this server; empty where nobody says."""
    if public_url is not None:
        return public_url.rstrip("/")
    host = exchange.headers.get("host", "")
    return f"http://{host}" if host else ""
