"""HTTP by hand over asyncio streams: keep-alive, half requests, drops; what a proper client would never send."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

import msgspec

LIMIT_S = 30.0  # nothing here may take longer: a hang fails by name


class Answer(msgspec.Struct):
    """One response. `complete`: the framing came to its end."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    def json(self) -> dict[str, object]:
        """The body as an object."""
        found = json.loads(self.body)
        assert isinstance(found, dict), found
        return found

    def error(self) -> dict[str, object]:
        """OpenAI's error object, checked for its shape."""
        error = self.json().get("error")
        assert isinstance(error, dict), self.body[:300]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"], error
        assert isinstance(error["type"], str), error
        return error

    def events(self) -> list[str]:
        """The data of each server-sent event."""
        return [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]


def request_bytes(
    path: str, body: object | bytes | None = None, headers: Mapping[str, str] | None = None, method: str | None = None
) -> bytes:
    """A whole request."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = {"host": "localhost", "content-type": "application/json", "content-length": str(len(raw)), **(headers or {})}
    if "transfer-encoding" in head:
        del head["content-length"]
    first = f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1\r\n"
    return (first + "".join(f"{name}: {value}\r\n" for name, value in head.items()) + "\r\n").encode("latin-1") + raw


class Connection:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, url: str, *, read_limit: int = 1 << 20) -> "Connection":
        """Connect."""
        host, _, port = url.removeprefix("http://").rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=read_limit))

    async def send(self, raw: bytes) -> None:
        """Write; a server that answers early and closes is no error here."""
        try:
            self.writer.write(raw)
            await asyncio.wait_for(self.writer.drain(), LIMIT_S)
        except ConnectionError:
            return

    async def answer(self, method: str = "POST") -> Answer | None:
        """The next response; None when the connection ended before it."""
        return await asyncio.wait_for(self._answer(method), LIMIT_S)

    async def _answer(self, method: str) -> Answer | None:
        answer = await self._head()
        while answer is not None and answer.status == 100:
            answer = await self._head()
        if answer is None or method == "HEAD":
            return answer
        try:
            async for part in self._body(answer.headers):
                answer.body += part
        except (asyncio.IncompleteReadError, ConnectionError):
            answer.complete = False
        return answer

    async def _head(self) -> Answer | None:
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Answer(int(first.split(" ", 2)[1]), {name.lower(): value.strip() for name, _, value in pairs}, b"")

    async def _body(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        if "chunked" not in headers.get("transfer-encoding", ""):
            yield await self.reader.readexactly(int(headers["content-length"]))
            return
        while size := int((await self.reader.readline()).strip() or b"-1", 16):
            if size < 0:
                raise asyncio.IncompleteReadError(b"", None)
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    def drop(self) -> None:
        """Leave without a word: a reset, so that the server cannot mistake it for a half-close."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close in order."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


async def call(
    url: str,
    path: str,
    body: object | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Answer:
    """One request on a connection of its own."""
    connection = await Connection.open(url)
    try:
        await connection.send(request_bytes(path, body, headers, method))
        answer = await connection.answer(method or "POST")
        assert answer is not None, f"no answer to {path}"
        return answer
    finally:
        await connection.close()
