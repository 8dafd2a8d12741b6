"""Upstreams as an operator writes them: refused by key when they cannot work (SPEC M1, M5)."""

from pathlib import Path

import pytest

from headway.adapters.upstream.settings import Place, UpstreamSettings, check_upstreams, credentials, place_of
from headway.core.errors import ConfigError


def test_a_url_gives_the_place() -> None:
    assert place_of("http://a:8000") == Place("a", 8000, "", False)
    assert place_of("https://b/prefix/") == Place("b", 443, "/prefix", True)
    assert place_of("http://[::1]:9") == Place("::1", 9, "", False)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("a:8000", "no http or https URL"),
        ("ftp://a", "no http or https URL"),
        ("http://a:99999", "is no URL"),
        ("http://user:secret@a", "holds no credentials"),
        ("http://a/v1", "leave it out"),
        ("http://a?x=1", "query"),
        ("http://a/\r\nx: y", "escape"),
    ],
)
def test_a_wrong_url_is_refused_by_its_key(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_upstreams([UpstreamSettings("one", url)])
    assert "upstreams[0].url: " in str(caught.value)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("upstream", "said"),
    [
        (UpstreamSettings("a b", "http://a"), "upstreams[0].name = 'a b'"),
        (UpstreamSettings("a", "http://a", authorization="key"), "needs upstreams[0].api_key_env or"),
        (UpstreamSettings("a", "http://a", api_key_env="K"), "without use while upstreams[0].authorization = 'none'"),
        (
            UpstreamSettings("a", "http://a", authorization="key", api_key_env="K", api_key_file="f"),
            "both given; keep one",
        ),
    ],
)
def test_what_does_not_fit_is_refused(upstream: UpstreamSettings, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_upstreams([upstream])
    assert said in str(caught.value)


def test_two_of_one_name_are_refused_by_both_keys() -> None:
    with pytest.raises(ConfigError, match=r"upstreams\[0\].name and upstreams\[2\].name are both 'a'"):
        check_upstreams([UpstreamSettings(name, "http://x") for name in ("a", "b", "a")])


def test_a_key_comes_from_where_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file\n")
    environment = {"KEY": "from-env"}
    of_env = UpstreamSettings("a", "http://a", authorization="key", api_key_env="KEY")
    of_file = UpstreamSettings("a", "http://a", authorization="key", api_key_file=str(tmp_path / "key"))
    assert credentials(of_env, environment) == "Bearer from-env"
    assert credentials(of_file, {}) == "Bearer from-file"
    assert credentials(UpstreamSettings("a", "http://a", authorization="forward"), environment) is None


@pytest.mark.parametrize("key", ["", "two words", "line\r\nbreak: x"])
def test_a_key_that_is_none_is_refused_without_showing_it(key: str) -> None:
    upstream = UpstreamSettings("a", "http://a", authorization="key", api_key_env="KEY")
    with pytest.raises(ConfigError, match="environment variable KEY holds no key") as caught:
        credentials(upstream, {"KEY": key})
    assert not key or key not in str(caught.value)
