"""Requests that nobody would write: made from the server's own OpenAPI document, then damaged. Seeded."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

Schema = Mapping[str, Any]  # JSON Schema
JSON_TYPES: Final = "application/json"
EDGE_TEXT: Final = (
    "", " ", "\x00", "\u202e", "\ufffe\uffff", "e\u0301" * 9, "\U0001f600\u200d\U0001f469", "\ufeff", "a" * 3000,
    "<|im_start|>", "{{ 7 * 7 }}", "{% for x in range(9999999) %}", "../../etc/passwd", "%00%n%s", "\r\nx-injected: 1",
    "null", "-1", "data: [DONE]\n\n", "\u0130\u0131\u00df", "\u2028\u2029",
)  # fmt: skip
EDGE_NUMBERS: Final = (
    0, -0.0, 1, -1, 2, 16, 17, 255, 258, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30,
    0.5, 1e-320, 5e-324, 1e-30, 1e308, 1.5, -2.5, 99.9,
)  # fmt: skip
# What Python's json writes for these is not JSON.
NOT_JSON: Final = (float("nan"), float("inf"), float("-inf"))
RAW: Final = (
    b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\x00", b"1e999", b"NaN", b"[" * 3000, b'{"a":' * 3000,
    b"9" * 5000, b"\xef\xbb\xbf", b"}", b"]", b'"', b"//", b",,", b"\\", b"0x1", b"01", b"+1", b".5", b"1.", b"tru",
)  # fmt: skip


class Request(msgspec.Struct, frozen=True):
    """One request to send."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Generator:
    """Draws requests."""

    def __init__(self, document: Schema, bases: Mapping[str, Mapping[str, object]], draw: random.Random) -> None:
        """`bases`: for each route that takes a body, one that is served."""
        self._document, self._bases, self._draw = document, bases, draw
        self._bodies: dict[str, Schema] = {}
        self._paths: list[str] = []
        for path, methods in document["paths"].items():
            self._paths.append(path)
            if "requestBody" in methods.get("post", {}):
                self._bodies[path] = methods["post"]["requestBody"]["content"][JSON_TYPES]["schema"]
        assert set(bases) <= set(self._bodies)

    def request(self) -> Request:
        """The next one."""
        draw = self._draw
        if draw.random() < 0.1:
            method = draw.choice(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
            return Request(method, self._path(), self._headers(), draw.choice([b"", b"{}", b"x" * 70_000]))
        path = draw.choice(list(self._bases))
        body: object = dict(self._bases[path])
        fields = self._fields(self._bodies[path])
        for name in draw.sample(sorted(fields), min(len(fields), draw.choice([0, 1, 1, 2, 4]))):
            assert isinstance(body, dict)
            body[name] = self._value(fields[name], 0)
        for _ in range(draw.choice([0, 0, 1, 1, 2])):
            body = self._damaged(body)
        raw = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
        return Request("POST", path, self._headers(), self._torn(raw))

    def _path(self) -> str:
        draw = self._draw
        path = draw.choice([*self._paths, "/", "/v1", "/v1/models/", "//", "/v1/requests//evidence", "/debug/trace"])
        path = path.replace("{id}", draw.choice(["x", "a" * 500, "%00", "..%2f..", "req-1", "%ff", "*"]))
        path = path.replace("{model}", "x").replace("{", "").replace("}", "")
        return path + draw.choice(["", "", "?", "?a=b&a=c", "?seconds=-1", "?seconds=nan", "?" + "q" * 2000, "/"])

    def _headers(self) -> dict[str, str]:
        draw = self._draw
        if draw.random() < 0.7:
            return {}
        name = draw.choice(
            ["x-request-id", "traceparent", "authorization", "content-type", "content-encoding", "accept", "prefer",
             "x-slo-ttft-ms", "x-slo-tpot-ms", "x-slo-e2e-ms", "idempotency-key", "x-stainless-retry-count", "cookie"]
        )  # fmt: skip
        value = draw.choice(
            ["", "a" * 300, "a b", "Bearer", "Bearer \xff\xfe", "Basic eDp4", "nan", "-1", "0", "1e999", "1e9", "5",
             "inf", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0-0-0",
             "application/json; charset=latin-1", "text/plain", "gzip", "respond-async", "\t,;="]
        )  # fmt: skip
        return {name: value}

    # Values from a schema

    def _fields(self, schema: Schema) -> Mapping[str, Schema]:
        found: Mapping[str, Schema] = self._resolved(schema)["properties"]
        return found

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            at: Any = self._document
            for step in schema["$ref"].removeprefix("#/").split("/"):
                at = at[step]
            schema = at
        return schema

    def _value(self, schema: Schema, depth: int) -> object:
        draw, schema = self._draw, self._resolved(schema)
        if draw.random() < 0.1 or depth > 4:
            return self._anything(depth)
        if "anyOf" in schema:
            return self._value(draw.choice(schema["anyOf"]), depth)
        if "enum" in schema:
            return draw.choice(schema["enum"])
        make: Mapping[object, Callable[[], object]] = {
            "null": lambda: None,
            "boolean": lambda: draw.random() < 0.5,
            "integer": lambda: self._number(schema, whole=True),
            "number": lambda: self._number(schema, whole=False),
            "string": lambda: draw.choice([*EDGE_TEXT, "synthetic", "user", "text"]),
            "array": lambda: [self._value(schema.get("items", {}), depth + 1) for _ in range(draw.randrange(4))],
            "object": lambda: self._object(schema, depth),
        }
        return make.get(schema.get("type"), lambda: self._anything(depth))()

    def _number(self, schema: Schema, *, whole: bool) -> float:
        draw = self._draw
        low = schema.get("minimum", schema.get("exclusiveMinimum", -3))
        high = schema.get("maximum", 40)
        near = [low, low - 1, low + 1, high, high + 1, (low + high) / 2, draw.randint(0, 40)]
        chosen: float = draw.choice([*near, *EDGE_NUMBERS] if draw.random() < 0.3 else near)
        return int(chosen) if whole and draw.random() < 0.9 else chosen

    def _object(self, schema: Schema, depth: int) -> dict[str, object]:
        if "properties" not in schema:
            inner = schema.get("additionalProperties")
            keys = self._draw.sample(["1", "-1", "99", "a", "", "999999999999", "\x00"], 3)
            return {key: self._value(inner if isinstance(inner, Mapping) else {}, depth + 1) for key in keys}
        required = set(schema.get("required", ()))
        return {
            name: self._value(inner, depth + 1)
            for name, inner in schema["properties"].items()
            if name in required or self._draw.random() < 0.2
        }

    def _anything(self, depth: int) -> object:
        draw = self._draw
        kind = draw.randrange(7 if depth < 4 else 5)
        if kind < 5:
            return draw.choice([None, True, False, *EDGE_NUMBERS, *EDGE_TEXT, *NOT_JSON, "\ud800"])
        if kind == 5:
            return [self._anything(depth + 1) for _ in range(draw.randrange(4))]
        return {draw.choice(["", "a", "role", "type", "__proto__"]): self._anything(depth + 1) for _ in range(3)}

    # Damage

    def _damaged(self, body: object) -> object:
        draw = self._draw
        if not isinstance(body, dict) or draw.random() < 0.1:
            return self._anything(0)
        name = draw.choice(list(body)) if body else ""
        kept = {key: value for key, value in body.items() if key != name}
        match draw.randrange(5):
            case 0:
                return kept
            case 1:
                return {**body, draw.choice([name.upper(), name[:-1], name + "s", "temprature", "\x00", "a" * 5000]): 1}
            case 2:
                return {**body, name: [body.get(name)]}
            case 3:
                return {**body, name: self._anything(0)}
            case _:
                return {**body, name: self._anything(0)} | dict(list(body.items())[::-1])

    def _torn(self, raw: bytes) -> bytes:
        draw = self._draw
        if draw.random() < 0.75:
            return raw
        at = draw.randrange(len(raw) + 1)
        match draw.randrange(5):
            case 0:
                return raw[:at]
            case 1:
                return raw[:at] + draw.choice(RAW) + raw[at:]
            case 2:
                return raw[:at] + draw.randbytes(3) + raw[at + 3 :]
            case 3:
                return raw[:-1] + b"," + raw[1:]  # every key twice
            case _:
                return raw + draw.choice(RAW)
