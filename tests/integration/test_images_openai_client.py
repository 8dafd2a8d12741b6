"""The official client draws: over a socket, through front, router and a replica process with the synthetic denoiser."""

import asyncio
import base64
import contextlib
import io
import socket
from collections.abc import AsyncIterator

import openai
import pytest
import uvicorn
from PIL import Image
from tests.integration.live_world import on_loop
from tests.unit.adapters.gateway.fakes import MODEL
from tests.unit.adapters.gateway.pictures.fakes import TOY, MemoryJobs

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.job_ports import Durable
from headway.adapters.gateway.protocol import http_protocol
from headway.core.ids import RequestId
from headway.live.clock import Clock
from headway.live.config import Host, gateway_settings, resolve, set_layer
from headway.live.launch import plan
from headway.live.run import Live

DEVICE = "engine='synthetic', synthetic={step_ms=STEP, megapixel_ms=0}"
PAINTER = f"diffusion=[{{name='painter', steps=4, {DEVICE}}}]"


class Studio:
    """A running system and its client."""

    def __init__(self, live: Live, port: int) -> None:
        self.live = live
        url = f"http://127.0.0.1:{port}/v1"
        self.client = openai.AsyncOpenAI(base_url=url, api_key="sk-test", max_retries=0, timeout=60)

    async def draw(self, **extra: object) -> "openai.types.ImagesResponse":
        return await self.client.images.generate(
            model="painter", prompt="a red circle", size="64x64", n=extra.pop("n", 1), extra_body=extra
        )

    def reserved(self) -> dict[str, int]:
        return {view.name: view.reserved for view, _ in self.live.serving.accounts() if view.reserved}


@contextlib.asynccontextmanager
async def studio(step_ms: int = 1) -> AsyncIterator[Studio]:
    config = resolve(
        [set_layer(one) for one in ("model.replicas=0", PAINTER.replace("STEP", str(step_ms)))], Host(2)
    ).config
    live, jobs = Live(plan(config, ()), Clock(), lambda node, line: None), MemoryJobs()
    settings = gateway_settings(config)
    app = build_app(live.serving, {MODEL: TOY}, settings, Durable(jobs, jobs, jobs, jobs))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", http=http_protocol(settings.limits), timeout_graceful_shutdown=1)
    )
    try:
        await asyncio.wait_for(live.start(), 60)
        http = asyncio.create_task(server.serve([listener]))
        made = Studio(live, listener.getsockname()[1])
        yield made
        await made.client.close()
        server.should_exit = True
        await http
        live.check()
    finally:
        await live.stop()
        listener.close()


def pictures(answer: "openai.types.ImagesResponse") -> list[bytes]:
    return [base64.b64decode(one.b64_json or "") for one in answer.data or []]


def test_the_official_client_draws_edits_and_streams() -> None:
    # SPEC H1, F5
    async def test() -> None:
        async with studio() as there:
            assert [model.id async for model in there.client.models.list()] == ["painter"]
            three = await there.draw(n=3, seed=20)
            alone = [pictures(await there.draw(seed=20 + k))[0] for k in range(3)]
            assert pictures(three) == alone  # A1111#14273, diffusers#6233
            assert Image.open(io.BytesIO(alone[0])).size == (64, 64)
            extra = three.model_extra or {}
            assert extra["seeds"] == [20, 21, 22]
            assert extra["gpu_seconds"] > 0
            assert sum(extra["stage_seconds"].values()) == pytest.approx(extra["gpu_seconds"])
            edit = await there.client.images.edit(
                model="painter",
                image=("in.png", alone[0], "image/png"),
                prompt="bluer",
                extra_body={"seed": 1, "strength": 0.5},
            )
            assert (edit.model_extra or {})["parameters"]["strength"] == 0.5
            assert pictures(edit) != alone[:1]
            kinds = []
            stream = await there.client.images.generate(
                model="painter", prompt="x", stream=True, partial_images=2, extra_body={"num_inference_steps": 8}
            )
            async for event in stream:
                kinds.append(event.type)
            assert kinds == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
            with pytest.raises(openai.BadRequestError, match="guidance_scale"):
                await there.draw(guidance_scal=1)
            with pytest.raises(openai.NotFoundError):
                await there.client.images.generate(model="nope", prompt="x")
            assert there.reserved() == {}

    on_loop(test)


def test_a_crowd_gets_what_each_gets_alone() -> None:
    # SPEC F4; sglang#28502: batches damaged pictures of the same seed
    async def test() -> None:
        async with studio() as there:
            alone = [pictures(await there.draw(seed=seed)) for seed in range(3)]
            crowd = await asyncio.gather(*(there.draw(seed=seed % 3) for seed in range(9)))
            assert [pictures(one) for one in crowd] == [alone[seed % 3] for seed in range(9)]

    on_loop(test)


def test_a_client_that_leaves_frees_the_device() -> None:
    # vllm-omni#1347: no abort on disconnect; SPEC H2
    async def test() -> None:
        async with studio(step_ms=50) as there:
            leaving = asyncio.create_task(there.draw(seed=1, num_inference_steps=200, n=1))
            while not there.live.front.book.requests:
                await asyncio.sleep(0)
            (request,) = there.live.front.book.requests
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await there.draw(seed=2)  # waits for one step at most, not for 200
            record = there.live.serving.evidence(RequestId(request))
            assert record is not None
            assert record.outcome == "cancelled"
            assert record.steps_done < 100
            assert there.reserved() == {}

    on_loop(test)
