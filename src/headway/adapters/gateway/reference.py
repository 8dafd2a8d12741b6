"""Writes the API reference out of the structs and tables that validate requests.

`python -m headway.adapters.gateway.reference > docs/api.md`
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from headway.adapters.gateway.answer_fields import ANSWERS
from headway.adapters.gateway.fields import HARMLESS, UNSUPPORTED
from headway.adapters.gateway.openapi import openapi_document
from headway.adapters.gateway.pictures.queue import PauseBody, ResumeBody
from headway.adapters.gateway.pictures.schema import (
    NOT_SERVED,
    EditBody,
    ImageBody,
    RemixBody,
    SessionBody,
    SessionChange,
    VariationBody,
    VideoBody,
)
from headway.adapters.gateway.replicas import WarmBody
from headway.adapters.gateway.schema import ChatBody, CompletionBody, DetokenizeBody, EstimateBody, TokenizeBody

Schema = Mapping[str, object]

HEAD: Final = """# HTTP API

OpenAI's API, with vLLM's extra fields. This page is generated from the structs that validate requests
(`python -m headway.adapters.gateway.reference > docs/api.md`); `GET /openapi.json` says the same to machines.

Null is the same as leaving a field out. An unknown field is refused with the nearest known name; a known one that is
not served is refused by name. Every response that is not 2xx carries `{"error": {message, type, param, code}}`.

| header | meaning |
|---|---|
| `authorization: Bearer KEY` | names the tenant, where keys are configured |
| `x-request-id` | echoed, or minted; names the request in `/v1/requests/{id}/evidence` (as the field `request_id`) |
| `traceparent` | W3C trace context, continued |
| `x-slo-ttft-ms`, `x-slo-tpot-ms`, `x-slo-e2e-ms` | the SLO of this request; else the route's default |
| `x-headway-model` | in an answer: who gave it, where another name was asked for (alias, fallback, transfer) |

A stream sends `: ping` comments while nothing else is to be said, one event per engine step, the finish reason in an
event of its own, usage last (`stream_options.include_usage`), then `[DONE]`. A stream that fails ends with an error
event and no `[DONE]`. `stream_options.include_obfuscation` is taken without effect: nothing is padded here.

Chat answers may fill the model's context unless a limit is given; text completions have 16 tokens, as at OpenAI. Stop
strings are cut before they leave; of those that are complete first the longest counts. The stop token is counted in
`completion_tokens` and listed in `logprobs`, but is no text. The first choice of a prompt keeps the seed, the others
derive theirs from it.

A request that cannot keep its SLO is refused before it runs: 429 `slo_unattainable`, with the prediction in the
message, `retry-after-ms`, and `x-should-retry`, true only if waiting can help. Where `retry-after` is above 60 s, as of
a daily quota, `x-should-retry` is false: OpenAI's clients wait for no longer, and would spend their retries within
seconds. One whose deadline for the first token, or for its end, passes while it waits is answered 408 `deadline_passed`
and never run.

`GET /ready` is 200 `{"status": "ready"}` while every model has a replica, else 503 `not_ready`. Where the job table or
the object store is away it stays 200, for text is served, and gateways that share one table would all leave their load
balancer at once; it then says `"degraded": ["job table does not answer"]` (or `object store ...`), as it was when last
used: asking looks anew, at the table at most every 2 s, at the store every 10 s. Requests that need it are answered 503
`no_job_table` or `no_object_store` with `retry-after: 1`; where it is and what it said is in the server's log.

`allow_degrade` says what may be taken from a request so that it keeps its deadline: `max_tokens` (fewer tokens) or
`model` (a fallback of its model answers). What was taken is told as `degraded: {...}` in the answer, in a stream in the
first event of the choice. The other names belong to images and video and take nothing from text.

Images and videos: a body is JSON or a form (`multipart/form-data`), whose nested fields have bracketed names
(`lora[0][id]`) and whose texts are converted by the type of the field. Pictures come as files `image` (or `image[]`),
`mask`, `input_reference`, or in JSON as `data:` URLs; other URLs are not fetched. Their size is read from their header
before anything is decoded. Picture k of n has the seed `seed + k`, and is the same when it is asked for alone.
`response_format` is `b64_json` unless said otherwise. With `stream` the events are `image_generation.partial_image` (at
most `partial_images`) and `image_generation.completed`, of edits `image_edit.*`. A client that leaves stops a request
that it waits for, never a job. `deterministic` asks for a batch of its own: the same request of the same tenant then
has the same bytes, and is answered from memory while that answer is kept (`cached: true`). A request predicted to take
more than `limits.sync_s` is refused with `use_async`: send `prefer: respond-async`, and it is a job: 202 with
`preference-applied`, `location` (where to look) and `openai-poll-after-ms` (when), as have all jobs that are not over.
Its `eta_s` is null while no replica of its model may take it (none is up, or all are drained).

A streaming session (`POST /v1/videos/sessions`) is a long connection over which a video comes in chunks, each an MP4 of
its own, made as it is played; see [videos.md](videos.md).

The header `idempotency-key` runs a request for pictures or a video once: repeated with the same body it gets the same
answer, and waits for it while the first still runs; an answer that was given before carries `idempotent-replayed:
true`. With another body it is 409 `idempotency_conflict`. A streaming session is not repeated: 409 `session_open` or
`session_over`. Answers of `/v1/chat/completions` and `/v1/completions`, streamed or whole, are not kept: with a key
these are 400 `unsupported_parameter`. Keys that begin with `stainless-` pass there without effect, as OpenAI's SDKs
make them for their own retries where they are told to; by default they send none. A relayed request takes its key to
the upstream.
A content route gives one range of its bytes where `range` asks for it.

Requests for a model of an upstream are relayed as they are: which fields it takes, and how its answer looks, is its
affair. Of the fields above Headway reads `model`, `messages` or `prompt`, `tools`, `stream`, `n`, the limits of tokens,
`seed`, `temperature`, `priority`, `session_id`, `cache_salt`, `ignore_eos` and `allow_degrade`. Errors before the first
byte have the form above; a 4xx of the upstream is passed on. `POST /v1/route/explain` (`{"endpoint":
"/v1/chat/completions", "body": {...}}`, the body as that route takes it) explains them too, with `server.processes` as
the main process would route them. `POST /v1/estimates`, `/tokenize` and `/detokenize` answer 400
for such a model: what its engine's steps cost, and its tokens, are not known here.
"""
BODIES: Final[tuple[tuple[str, type[msgspec.Struct]], ...]] = (
    ("POST /v1/chat/completions", ChatBody),
    ("POST /v1/completions", CompletionBody),
    ("POST /tokenize", TokenizeBody),
    ("POST /detokenize", DetokenizeBody),
    ("POST /v1/estimates", EstimateBody),
    ("POST /v1/images/generations", ImageBody),
    ("POST /v1/images/edits", EditBody),
    ("POST /v1/images/variations", VariationBody),
    ("POST /v1/videos", VideoBody),
    ("POST /v1/videos/{id}/remix", RemixBody),
    ("POST /v1/videos/sessions", SessionBody),
    ("POST /v1/videos/sessions/{id}", SessionChange),
    ("POST /v1/queue/pause", PauseBody),
    ("POST /v1/queue/resume", ResumeBody),
    ("POST /v1/replicas/{id}/warm", WarmBody),
)


def api_reference() -> str:
    """Return the page."""
    document = openapi_document()
    paths, schemas = _table(document, "paths"), _table(_table(document, "components"), "schemas")
    parts = [HEAD.rstrip(), "## Routes", "\n".join(["| route | what |", "|---|---|", *_routes(paths)])]
    for route, body in BODIES:
        schema = _table(schemas, body.__name__)
        rows = [_row(name, schema, schemas) for name in body.__struct_fields__]
        parts += [f"## `{route}`", "\n".join(["| field | type |", "|---|---|", *rows])]
    parts += ["# Answers"]
    for route, fields in ANSWERS.items():
        meanings = [f"| `{name}` | {meaning} |" for name, meaning in fields.items()]
        parts += [f"## {route}", "\n".join(["| field | meaning |", "|---|---|", *meanings])]
    parts += ["# Fields that do nothing, or are refused"]
    pictures = [
        f"| `{name}` | {entry.reason} | {', '.join(f'`{_json(value)}`' for value in entry.inert)} |"
        for name, entry in NOT_SERVED.items()
    ]
    harmless = [f"| `{name}` | {why} |" for name, why in HARMLESS.items()]
    refused = [
        f"| `{name}` | {entry.reason} | {', '.join(f'`{_json(value)}`' for value in entry.inert)} |"
        for name, entry in UNSUPPORTED.items()
    ]
    parts += ["## Taken without effect", "\n".join(["| field | why |", "|---|---|", *harmless])]
    parts += ["## Not served", "\n".join(["| field | why | accepted values |", "|---|---|---|", *refused])]
    parts += [
        "## Not served of images and videos",
        "\n".join(["| field | why | accepted values |", "|---|---|---|", *pictures]),
    ]
    return "\n\n".join(parts) + "\n"


def _routes(paths: Schema) -> Iterator[str]:
    for path in paths:
        for method, operation in _table(paths, path).items():
            summary = operation.get("summary") if isinstance(operation, Mapping) else ""
            yield f"| `{method.upper()} {path}` | {summary} |"


def _row(name: str, schema: Schema, schemas: Schema) -> str:
    required = schema.get("required")
    needed = isinstance(required, list) and name in required
    text = type_text(_table(_table(schema, "properties"), name), schemas)
    return f"| `{name}`{' (required)' if needed else ''} | {text} |"


def type_text(schema: Schema, schemas: Schema) -> str:
    """Return a JSON schema as a reader wants it."""
    options = schema.get("anyOf")
    if isinstance(options, list):
        kinds = [type_text(option, schemas) for option in options if option != {"type": "null"}]
        return " or ".join(kinds)
    if "enum" in schema:
        values = schema["enum"]
        return " or ".join(f"`{_json(value)}`" for value in values) if isinstance(values, list) else ""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        inner = _table(schemas, reference.rsplit("/", 1)[1])
        return "{" + ", ".join(f"`{name}`" for name in _table(inner, "properties")) + "}"
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "minItems": "items ≥", "maxItems": "items ≤"}
    bounds = [f"{sign} {schema[key]}" for key, sign in limits.items() if key in schema]
    kind = str(schema.get("type", "any JSON"))
    if kind == "array" and (items := _table(schema, "items")):
        kind = f"list of {type_text(items, schemas)}"
    elif kind == "object" and (values := schema.get("additionalProperties")) and isinstance(values, Mapping):
        kind = f"object of {type_text(values, schemas)}"
    return kind + (f" ({', '.join(bounds)})" if bounds else "")


def _table(parent: Schema, key: str) -> Schema:
    found = parent.get(key)
    return found if isinstance(found, Mapping) else {}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


if __name__ == "__main__":
    sys.stdout.write(api_reference())
