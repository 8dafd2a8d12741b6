import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.adapters.gateway.pictures.fakes import form

from headway.adapters.gateway.pictures.forms import FIELD_BYTES_MAX, PARTS_MAX, Form, Value, place, read_form
from headway.core.errors import RequestError

KIND = "multipart/form-data; boundary=edge"


async def in_parts(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


def read(body: bytes, kind: str = KIND, size: int = 1 << 16) -> Form:
    return asyncio.run(read_form(kind, in_parts(body, size)))


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_a_form_is_read_however_it_is_cut(size: int) -> None:
    body, _ = form([("prompt", "größer"), ("n", "2")], [("image[]", b"\r\n--edge?\r\n"), ("image[]", b"two")])
    found = read(body, size=size)
    assert found.fields == {"prompt": "größer", "n": "2"}
    assert found.files == {"images": [b"\r\n--edge?\r\n", b"two"]}


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (["a"], {"a": "0"}),
        (["a[b]", "a[c]"], {"a": {"b": "0", "c": "1"}}),
        (["a[]", "a[]"], {"a": ["0", "1"]}),
        (["a[][id]", "a[][scale]", "a[][id]"], {"a": [{"id": "0", "scale": "1"}, {"id": "2"}]}),
        (["a[0][id]", "a[1][id]", "a[0][scale]"], {"a": [{"id": "0", "scale": "2"}, {"id": "1"}]}),
        (["a[b][c][d]"], {"a": {"b": {"c": {"d": "0"}}}}),
    ],
)
def test_bracketed_names_nest(keys: list[str], found: dict[str, Value]) -> None:
    fields: dict[str, Value] = {}
    for number, key in enumerate(keys):
        place(fields, key, str(number))
    assert fields == found


BROKEN = (["a", "a"], ["a", "a[b]"], ["a[b]", "a[b]"], ["[a]"], ["a["], ["a]b"], ["a[b][c][d][e][f]"])
MIXED = (["a[b]", "a[]"], ["a[]", "a[b]"], ["a[0][b]", "a[²][b]"])  # `²` is a digit, and no number


@pytest.mark.parametrize("keys", [*BROKEN, *MIXED])
def test_names_that_contradict_or_are_broken_are_refused(keys: list[str]) -> None:
    fields: dict[str, Value] = {}
    for key in keys[:-1]:
        place(fields, key, "x")
    with pytest.raises(RequestError):
        place(fields, keys[-1], "x")


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (form([("a", "x")])[0], "multipart/form-data", "no boundary"),
        (b"nonsense", KIND, "broken"),
        (form([("a", "x")])[0][:-6], KIND, "before its last boundary"),
        (form([("a", "x")] * (PARTS_MAX + 1))[0], KIND, "more than"),
        (form([("a", "x" * (FIELD_BYTES_MAX + 1))])[0], KIND, "larger than"),
        (b'--edge\r\ncontent-disposition: form-data; name="a"\r\n\r\n\xff\r\n--edge--\r\n', KIND, "UTF-8"),
        (b"--edge\r\ncontent-type: text/plain\r\n\r\nx\r\n--edge--\r\n", KIND, "no name"),
        (form([], [("thing", b"x")])[0], KIND, "files are"),
    ],
)
def test_broken_or_too_large_forms_are_refused(body: bytes, kind: str, words: str) -> None:
    # SPEC M5
    with pytest.raises(RequestError, match=words):
        read(body, kind)
