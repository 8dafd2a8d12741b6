import asyncio

from aiohttp import web

from headway.bench.asks import Ask, prompt, send
from headway.core.units import NS_PER_MS


def test_prompts_have_their_length_and_share_no_beginning() -> None:
    made = [prompt(1, place, 40, 250) for place in range(20)]
    assert {len(tokens) for tokens in made} == {40}
    assert len({tokens[:4] for tokens in made}) == 20
    assert made[3] == prompt(1, 3, 40, 250)


def test_sends_every_request_in_the_order_of_its_time_and_counts_tokens_without_text() -> None:
    asked: list[tuple[str, dict[str, object]]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append((request.headers["x-request-id"], await request.json()))
        response = web.StreamResponse()
        await response.prepare(request)
        for part in ('{"choices": [{"text": "", "token_ids": [7]}]}', '{"choices": [{"text": "a", "token_ids": [8]}]}'):
            await response.write(f"data: {part}\n\n".encode())
        await response.write(b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n')
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        asks = [Ask("late", 60 * NS_PER_MS, (1, 2), 2), Ask("soon", 0, (3,), 2)]
        seen = await send(f"http://{host}:{port}", "m", asks)
        await runner.cleanup()
        assert {name: (o.error, o.output_tokens, len(o.times_ns)) for name, o in seen.items()} == {
            "soon": (None, 2, 2),
            "late": (None, 2, 2),
        }

    asyncio.run(main())
    assert [name for name, _ in asked] == ["soon", "late"]
    assert asked[0][1]["prompt"] == [3]
    assert (asked[0][1]["max_tokens"], asked[0][1]["ignore_eos"]) == (2, True)
