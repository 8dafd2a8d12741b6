"""Webhooks: signed as the `openai` client verifies, and never sent into the operator's own network."""

import asyncio
import base64
import time
from collections.abc import Callable

import openai
import pytest
from aiohttp import web

from headway.adapters.webhooks.send import Answer, Webhooks
from headway.adapters.webhooks.settings import WebhookSettings, check
from headway.adapters.webhooks.target import GuardedResolver, TargetRefused, Targets
from headway.core.errors import ConfigError, RequestError

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
BODY = b'{"id": "evt_1", "object": "event", "type": "video.completed", "created_at": 1, "data": {"id": "video_1"}}'
SPELLINGS = ("2130706434", "0x7f000002", "0177.0.0.2", "127.2", "127.0.0.2.", "0X7F.2.")
LOCAL = WebhookSettings({"*": SECRET}, ("127.0.0.0/8",))


class Receiver:
    """A server that answers with `status` and keeps what came."""

    def __init__(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.status, self.headers = status, headers or {}
        self.got: list[tuple[str, dict[str, str], bytes]] = []

    async def _take(self, request: web.Request) -> web.Response:
        self.got.append((request.path, dict(request.headers), await request.read()))
        return web.Response(status=self.status, headers=self.headers)


def delivered(receiver: Receiver, settings: WebhookSettings, url: Callable[[int], str]) -> Answer:
    async def use() -> Answer:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", receiver._take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        hooks = Webhooks(settings, 5.0, lambda: int(time.time()))
        answer = await hooks.send("evt_1", "acme", url(port), BODY)
        await hooks.close()
        await runner.cleanup()
        return answer

    return asyncio.run(use())


# SPEC H2
def test_the_openai_client_unwraps_what_is_sent() -> None:
    receiver = Receiver(204)
    assert delivered(receiver, LOCAL, lambda port: f"http://127.0.0.1:{port}/hook").status == 204
    ((path, headers, body),) = receiver.got
    client = openai.OpenAI(api_key="k", webhook_secret=SECRET)
    event = client.webhooks.unwrap(body.decode(), {name.lower(): value for name, value in headers.items()})
    assert (path, event.type, event.id) == ("/hook", "video.completed", "evt_1")
    other = openai.OpenAI(api_key="k", webhook_secret="whsec_" + base64.b64encode(b"x" * 32).decode())
    with pytest.raises(openai.InvalidWebhookSignatureError):
        other.webhooks.unwrap(body.decode(), {name.lower(): value for name, value in headers.items()})


def test_a_tenants_own_secret_signs_for_it() -> None:
    own = "whsec_" + base64.b64encode(b"own" * 10).decode()
    receiver = Receiver()
    settings = WebhookSettings({"*": SECRET, "acme": own}, ("127.0.0.0/8",))
    delivered(receiver, settings, lambda port: f"http://127.0.0.1:{port}/")
    headers = {name.lower(): value for name, value in receiver.got[0][1].items()}
    openai.OpenAI(api_key="k", webhook_secret=own).webhooks.unwrap(BODY.decode(), headers)


def test_redirects_are_not_followed() -> None:
    receiver = Receiver(302, {"location": "/elsewhere"})
    assert delivered(receiver, LOCAL, lambda port: f"http://127.0.0.1:{port}/hook").status == 302
    assert [path for path, _, _ in receiver.got] == ["/hook"]


def test_a_name_is_judged_by_what_it_resolves_to() -> None:
    with pytest.raises(TargetRefused, match="is not a public address"):
        asyncio.run(GuardedResolver(Targets(())).resolve("localhost", 80))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://0.0.0.0/",
        "http://10.0.0.1/",
        "http://100.64.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://224.0.0.1/",
    ],
)
def test_no_way_of_writing_a_private_address_is_sent_to(url: str) -> None:
    # SPEC M5
    async def use() -> Answer:
        hooks = Webhooks(WebhookSettings({"*": SECRET}), 5.0, lambda: 0)
        answer = await hooks.send("evt_1", "acme", url, BODY)
        await hooks.close()
        return answer

    assert asyncio.run(use()).is_refused


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.com/", "only http"),
        ("file:///etc/passwd", "only http"),
        ("//example.com", "only http"),
        ("https://user:pw@example.com/", "user or a password"),
        ("https://10.0.0.1/", "not a public address"),
        ("http://[::1", "no URL"),
        ("http://xn--a/", "no URL"),
        *((f"http://{host}:9101/x", "127.0.0.2 is not a public address") for host in SPELLINGS),
        ("http://999999999999/", "no IPv4 address"),
        ("http://1.2.3.4.5/", "no IPv4 address"),
        ("http://localhost:9101/", "localhost is this machine, which is not a public address"),
        ("http://A.LocalHost./", "is not a public address"),
    ],
)
def test_a_url_that_can_never_be_told_is_refused_when_the_job_is_made(url: str, why: str) -> None:
    # SPEC M5
    hooks = Webhooks(WebhookSettings({"*": SECRET}), 5.0, lambda: 0)
    with pytest.raises(RequestError, match=why) as caught:
        hooks.check(url, "acme")
    assert (caught.value.status, caught.value.param) == (400, "webhook_url")


@pytest.mark.parametrize("host", [*SPELLINGS, "localhost"])
def test_an_allowed_address_is_reached_however_it_is_written(host: str) -> None:
    targets = Targets(("127.0.0.0/8",))
    assert targets.check_url(f"http://{host}:9101/x?y=1").host in ("127.0.0.2", "localhost")


def test_a_public_url_passes() -> None:
    hooks = Webhooks(WebhookSettings({"acme": SECRET}), 5.0, lambda: 0)
    for host in ("hooks.example.com", "1.1.1.1", "16843009", "3com.example", "0x7f.example", "[2606:4700::1]"):
        hooks.check(f"https://{host}/x?y=1", "acme")
    with pytest.raises(RequestError, match="nothing signs for tenant other"):
        hooks.check("https://hooks.example.com/x", "other")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", f"http://{'x' * 64}.invalid/", "http://name.invalid/"])
def test_a_receiver_that_is_not_there_is_no_error_but_an_answer(url: str) -> None:
    async def use() -> Answer:
        hooks = Webhooks(LOCAL, 5.0, lambda: 0)
        answer = await hooks.send("evt_1", "acme", url, BODY)
        await hooks.close()
        return answer

    answer = asyncio.run(use())
    assert answer.status is None


@pytest.mark.parametrize("secret", ["whsec_short", "plain", "whsec_!!", ""])
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigError, match=r"jobs\.webhooks\.secrets of tenant acme") as caught:
        check(WebhookSettings({"acme": secret}))
    assert not secret or secret not in str(caught.value)


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"jobs\.webhooks\.allowed_networks"):
        check(WebhookSettings({}, ("10.0.0.1/8",)))
