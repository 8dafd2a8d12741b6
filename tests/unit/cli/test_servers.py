import pytest

from headway.cli.servers import said, server_url
from headway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8410", "http://localhost:8410"),
        ("http://localhost:8410/", "http://localhost:8410"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("https://gpu.example/v1/", "https://gpu.example"),
        ("https://gpu.example/llm/v1", "https://gpu.example/llm"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_is_taken_as_people_type_it(given: str, url: str) -> None:
    assert server_url(given) == url


@pytest.mark.parametrize("given", ["", "http://", "ftp://host", "host:port", "host:99999", "http://[::1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="no address of a server"):
        server_url(given)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b'{"error": {"message": "No key\\nwas sent."}}', "No key was sent."),
        (b"<!DOCTYPE HTML>\n<html><body>many\nlines", "a web page, so this is no such server"),
        (b"not\nfound", "not found"),
        (b"[1]", "[1]"),
        (b"", "nothing"),
    ],
)
def test_what_a_server_says_is_one_line(body: bytes, line: str) -> None:
    assert said(body) == line
