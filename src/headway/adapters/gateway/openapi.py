"""The OpenAPI document, made from the structs that validate requests."""

from functools import cache
from typing import Final

import msgspec

from headway.adapters.gateway.errors import ErrorBody
from headway.adapters.gateway.fields import HARMLESS, UNSUPPORTED
from headway.adapters.gateway.render import ChatCompletion, TextCompletion
from headway.adapters.gateway.schema import ChatBody, CompletionBody, DetokenizeBody, EstimateBody, TokenizeBody

_REF: Final = "#/components/schemas/{name}"
_POST: Final = {
    "/v1/chat/completions": (ChatBody, "Generate a chat message"),
    "/v1/completions": (CompletionBody, "Continue a text"),
    "/tokenize": (TokenizeBody, "Turn text or messages into tokens"),
    "/detokenize": (DetokenizeBody, "Turn tokens into text"),
    "/v1/estimates": (EstimateBody, "Predict time, memory and price before the work"),
    "/v1/route/explain": (EstimateBody, "Where a request would go now, with the parts of every replica's score"),
    "/v1/replicas/{id}/drain": (None, "Take a replica out; what runs there ends as it would"),
    "/v1/replicas/{id}/undrain": (None, "Bring a drained replica back"),
    "/reset_prefix_cache": (None, "Forget every unreferenced cached block"),
}
_GET: Final = {
    "/v1/models": "List the models",
    "/v1/models/{id}": "Describe one model",
    "/v1/ledger": "Every account of the ledger",
    "/v1/replicas": "Every replica with its health, breaker and load",
    "/v1/requests/{id}/evidence": "Where the time of one request went",
    "/health": "The process lives",
    "/ready": "Requests can be served",
    "/version": "The version of Headway",
    "/ping": "The process lives",
    "/load": "Requests in flight",
    "/metrics": "Prometheus metrics",
    "/debug/trace": "The last seconds as a Chrome/Perfetto trace; evidence or steps as lines (`format=jsonl`, `steps`)",
    "/openapi.json": "This document",
}
_ANSWERS: Final = {"/v1/chat/completions": ChatCompletion, "/v1/completions": TextCompletion}


@cache
def openapi_json() -> bytes:
    """Return the document as it is served; made once."""
    return msgspec.json.encode(openapi_document())


def openapi_document() -> dict[str, object]:
    """Return the document. Every response that is not 2xx is OpenAI's error object."""
    structs = [ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, EstimateBody, *_ANSWERS.values(), ErrorBody]
    _, components = msgspec.json.schema_components(structs, schema_hook=_schema_of, ref_template=_REF)
    for struct in (ChatBody, CompletionBody):
        schema = components[struct.__name__]
        schema["additionalProperties"] = False
        schema["properties"] = _accepted() | schema["properties"]
    paths: dict[str, object] = {path: {"get": _operation(text, path)} for path, text in _GET.items()}
    for path, (body, text) in _POST.items():
        operation = _operation(text, path)
        if body is not None:
            operation["requestBody"] = {"required": True, "content": _json_of(body.__name__)}
        paths[path] = {"post": operation}
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


def _accepted() -> dict[str, object]:
    """Fields outside the schema: taken without effect, or only with values that mean the same as leaving them out."""
    fields: dict[str, object] = {name: {"description": f"No effect: {why}."} for name, why in HARMLESS.items()}
    for name, entry in UNSUPPORTED.items():
        fields[name] = {"description": f"Not supported: {entry.reason}.", "enum": list(entry.inert)}
    return fields


def _operation(text: str, path: str) -> dict[str, object]:
    ok: dict[str, object] = {"description": "Success"}
    if path in _ANSWERS:
        events = {"schema": {"type": "string"}}
        ok["content"] = {**_json_of(_ANSWERS[path].__name__), "text/event-stream": events}
    elif path == "/metrics":
        ok["content"] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        ok["content"] = {"application/json": {"schema": {"type": "object"}}}
    operation: dict[str, object] = {
        "summary": text,
        "responses": {"200": ok, "default": {"description": "Error", "content": _json_of("ErrorBody")}},
    }
    if "{id}" in path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _json_of(name: str) -> dict[str, object]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}
