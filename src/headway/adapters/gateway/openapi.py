"""The OpenAPI document, made from the structs that validate requests."""

from collections.abc import Mapping
from functools import cache
from typing import Final

import msgspec

from headway.adapters.gateway.errors import ErrorBody
from headway.adapters.gateway.fields import HARMLESS, UNSUPPORTED, Unsupported
from headway.adapters.gateway.pictures.answers import ImageAnswer
from headway.adapters.gateway.pictures.bodies import not_served
from headway.adapters.gateway.pictures.queue import PauseBody, ResumeBody
from headway.adapters.gateway.pictures.routes import IMAGE_ROUTES
from headway.adapters.gateway.pictures.schema import (
    SESSIONS,
    DiffusionBody,
    EditBody,
    ImageBody,
    RemixBody,
    SessionBody,
    SessionChange,
    VariationBody,
    VideoBody,
)
from headway.adapters.gateway.render import ChatCompletion, TextCompletion
from headway.adapters.gateway.replicas import WarmBody
from headway.adapters.gateway.schema import ChatBody, CompletionBody, DetokenizeBody, EstimateBody, TokenizeBody

_REF: Final = "#/components/schemas/{name}"
_VERBS: Final = {
    "cancel": "Stop a job at its next denoise step",
    "retry": "Queue a failed job again, with the same parameters and seed",
    "pause": "Hold a job; one that runs is saved at its next denoise step",
    "resume": "Let a paused job go on",
    "reorder": "Put a waiting job before another one (`?before=ID`)",
}
_POST: Final[dict[str, tuple[type[msgspec.Struct] | None, str]]] = {
    "/v1/chat/completions": (ChatBody, "Generate a chat message"),
    "/v1/completions": (CompletionBody, "Continue a text"),
    "/tokenize": (TokenizeBody, "Turn text or messages into tokens"),
    "/detokenize": (DetokenizeBody, "Turn tokens into text"),
    "/v1/images/generations": (ImageBody, "Make pictures; with `prefer: respond-async` a job"),
    "/v1/images/edits": (EditBody, "Make pictures that start from one; JSON or a form"),
    "/v1/images/variations": (VariationBody, "The same without words"),
    "/v1/videos": (VideoBody, "Queue a video; JSON or a form"),
    "/v1/videos/{id}/remix": (RemixBody, "Queue the same video with another prompt"),
    SESSIONS: (SessionBody, "Make a video chunk by chunk, sent over this connection as it is played"),
    f"{SESSIONS}/{{id}}": (SessionChange, "Other words from the next chunk on"),
    "/v1/estimates": (EstimateBody, "Predict time, memory and price before the work"),
    "/v1/route/explain": (EstimateBody, "Where a request would go now, with the parts of every replica's score"),
    **{f"/v1/{kind}/{{id}}/{verb}": (None, text) for kind in ("images", "videos") for verb, text in _VERBS.items()},
    "/v1/queue/pause": (PauseBody, "Begin no more jobs, of one model or of any; for an admin key where there is one"),
    "/v1/queue/resume": (ResumeBody, "Let paused queues go on"),
    "/v1/replicas/{id}/drain": (None, "Take a replica out; what runs there ends as it would"),
    "/v1/replicas/{id}/undrain": (None, "Bring a drained replica back"),
    "/v1/replicas/{id}/warm": (WarmBody, "Have sizes run there before anybody asks for them, while it has time"),
    "/reset_prefix_cache": (None, "Forget every unreferenced cached block"),
}
_GET: Final = {
    "/v1/models": "List the models",
    "/v1/models/{id}": "Describe one model",
    "/v1/images/{id}": "An image job as it stands, with its pictures once it is completed",
    "/v1/images/{id}/content": "A picture (`?variant=k`: the k-th of n; `?variant=preview&index=k` of a job)",
    "/v1/videos": "List videos (`after`, `limit`, `order`)",
    "/v1/videos/{id}": "A video as it stands; `openai-poll-after-ms` says when to ask again",
    "/v1/videos/{id}/content": "The video, or `?variant=` thumbnail, spritesheet, preview (`&index=k`)",
    SESSIONS: "The open sessions",
    f"{SESSIONS}/{{id}}": "An open session as it stands",
    "/v1/usage": "Use and price by day, tenant and model (`first_day`, `last_day`, `tenant`, `model`, `after`)",
    "/v1/usage/export": "All of it as CSV, or as JSON lines (`format=jsonl`)",
    "/v1/queue": "Jobs that wait and run, by model, and which queues are paused",
    "/v1/ledger": "Every account of the ledger",
    "/v1/replicas": "Every replica with its health, breaker and load",
    "/v1/requests/{id}/evidence": "Where the time of one request went",
    "/health": "The process lives",
    "/ready": "Requests can be served; `degraded`: what is away meanwhile",
    "/version": "The version of Headway",
    "/ping": "The process lives",
    "/load": "Requests in flight",
    "/metrics": "Prometheus metrics",
    "/debug/trace": "The last seconds as a Chrome/Perfetto trace; evidence or steps as lines (`format=jsonl`, `steps`)",
    "/openapi.json": "This document",
}
_DELETE: Final = {
    "/v1/images/{id}": "Remove pictures; a job that runs stops",
    "/v1/videos/{id}": "Remove a video; one that runs stops",
    f"{SESSIONS}/{{id}}": "End a session; what it makes stops at its next step",
}
_ANSWERS: Final = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": TextCompletion,
    **dict.fromkeys(IMAGE_ROUTES, ImageAnswer),
}


@cache
def openapi_json() -> bytes:
    """Return the document as it is served; made once."""
    return msgspec.json.encode(openapi_document())


def openapi_document() -> dict[str, object]:
    """Return the document. Every response that is not 2xx is OpenAI's error object."""
    bodies = dict.fromkeys(body for body, _ in _POST.values() if body is not None)
    structs = [*bodies, *dict.fromkeys(_ANSWERS.values()), ErrorBody]
    _, components = msgspec.json.schema_components(structs, schema_hook=_schema_of, ref_template=_REF)
    tables: list[tuple[type[msgspec.Struct], Mapping[str, Unsupported]]] = [
        *((struct, UNSUPPORTED) for struct in (ChatBody, CompletionBody)),
        *((struct, not_served(struct)) for struct in (ImageBody, EditBody, VariationBody, VideoBody)),
    ]
    for struct, unsupported in tables:
        schema = components[struct.__name__]
        schema["additionalProperties"] = False
        schema["properties"] = _accepted(unsupported) | schema["properties"]
    paths: dict[str, dict[str, object]] = {path: {"get": _operation(text, path)} for path, text in _GET.items()}
    for path, (body, text) in _POST.items():
        operation = _operation(text, path)
        if path == SESSIONS:
            operation["responses"] = _responses({"text/event-stream": {"schema": {"type": "string"}}})
        if body is not None:
            operation["requestBody"] = {"required": True, "content": _content(body)}
        paths.setdefault(path, {})["post"] = operation
    for path, text in _DELETE.items():
        paths[path]["delete"] = _operation(text, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headway", "version": "1"},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _schema_of(kind: type) -> dict[str, object]:
    if kind is object:
        return {"description": "Any JSON value"}
    raise NotImplementedError(kind)


def _accepted(unsupported: Mapping[str, Unsupported]) -> dict[str, object]:
    """Fields outside the schema: taken without effect, or only with values that mean the same as leaving them out."""
    fields: dict[str, object] = {name: {"description": f"No effect: {why}."} for name, why in HARMLESS.items()}
    for name, entry in unsupported.items():
        fields[name] = {"description": f"Not supported: {entry.reason}.", "enum": list(entry.inert)}
    return fields


def _operation(text: str, path: str) -> dict[str, object]:
    content: dict[str, object]
    if path in _ANSWERS:
        events = {"schema": {"type": "string"}}
        content = {**_json_of(_ANSWERS[path].__name__), "text/event-stream": events}
    elif path.endswith("/content"):
        content = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    elif path == "/metrics":
        content = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": {"type": "object"}}}
    operation: dict[str, object] = {"summary": text, "responses": _responses(content)}
    if "{id}" in path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _responses(content: dict[str, object]) -> dict[str, object]:
    ok = {"description": "Success", "content": content}
    return {"200": ok, "default": {"description": "Error", "content": _json_of("ErrorBody")}}


def _content(body: type[msgspec.Struct]) -> dict[str, object]:
    schema = _json_of(body.__name__)
    if issubclass(body, DiffusionBody):  # files stand in its form, beside the same fields
        return {**schema, "multipart/form-data": {"schema": {"type": "object"}}}
    return schema


def _json_of(name: str) -> dict[str, object]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}
