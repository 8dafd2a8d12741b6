"""A picture beside the words: taken as a form or as JSON, told in the answer, refused where no adapter is."""

import asyncio

import msgspec
import pytest
from tests.unit.adapters.gateway.pictures.fakes import LOOKS, PAINTER, Studio, data_url, form, picture

from headway.adapters.gateway.ports import ModelCard
from headway.adapters.gateway.settings import GatewaySettings, LimitSettings

SHOWN, OTHER = picture(colour=7), picture(colour=8)
GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"


def run(test: object) -> None:
    asyncio.run(test())  # type: ignore[operator]  # each test gives a coroutine function


def studio(scale: float | None = 0.6, settings: GatewaySettings | None = None) -> Studio:
    """Its painter takes image prompts, unless `scale` is None."""
    made = Studio(settings)
    looks = msgspec.structs.replace(LOOKS, image_prompt_scale=scale)
    made.painter.cards[1] = ModelCard(PAINTER, ("image",), 0, 1, 0, 0, pictures=looks)
    return made


# SPEC F1, H1
def test_an_image_prompt_comes_as_a_form_or_as_json_and_is_told_in_the_answer() -> None:
    async def test() -> None:
        one = studio()
        fields = [("prompt", "x"), ("model", PAINTER), ("image_prompt_scale", "0.25")]
        replies = [
            await one.post(GENERATIONS, *form(fields, [("image_prompt", SHOWN)])),
            await one.draw(image_prompt=data_url(SHOWN)),
            await one.draw(image_prompt={"image_url": data_url(SHOWN)}, image_prompt_scale=0),
            await one.post(GENERATIONS, *form([*fields[:2], ("image_prompt[image_url]", data_url(SHOWN))])),
        ]
        scales = [0.25, 0.6, 0.0, 0.6]  # the model's where none is named
        assert [reply.json()["parameters"]["image_prompt_scale"] for reply in replies] == scales
        assert [reply.json()["parameters"]["image_prompts"] for reply in replies] == [1] * 4
        assert [request.image_prompt_scale for request in one.painter.painted] == scales
        for request in one.painter.painted:
            assert (request.image_prompts, request.content.image_prompts, request.content.pictures) == (1, (SHOWN,), ())
        assert one.jobs.news[replies[0].json()["id"]].request.content.image_prompts == ()  # it is the client's
        plain = await one.draw()
        assert "image_prompts" not in plain.json()["parameters"]
        assert one.painter.painted[-1].image_prompts == 0

    run(test)


# SPEC F1
def test_an_edit_may_have_one_and_a_job_keeps_it() -> None:
    async def test() -> None:
        one, brought = studio(), [("image", picture()), ("image_prompt", SHOWN)]
        await one.post(EDITS, *form([("prompt", "x"), ("model", PAINTER)], brought))
        (request,) = one.painter.painted
        assert (request.content.pictures, request.content.image_prompts) == ((picture(),), (SHOWN,))
        job = (await one.draw({"prefer": "respond-async"}, image_prompt=data_url(SHOWN))).json()
        assert one.jobs.news[job["id"]].request.content.image_prompts == (SHOWN,)
        assert job["parameters"]["image_prompt_scale"] == 0.6

    run(test)


# SPEC F2, F4
def test_an_estimate_knows_it() -> None:
    async def test() -> None:
        one, seen = studio(), []
        one.painter.foresee = lambda request: seen.append(request) or one.painter.predicted  # type: ignore[func-returns-value]
        request = {"model": PAINTER, "prompt": "x", "image_prompt": data_url(SHOWN)}
        reply = await one.post("/v1/estimates", {"endpoint": GENERATIONS, "body": request})
        assert reply.status == 200, reply.body
        assert seen[0].shape.image_prompts == 1

    run(test)


# SPEC F7
def test_another_picture_or_scale_is_another_request() -> None:
    async def test() -> None:
        one, same = studio(), {"deterministic": True, "seed": 3}
        for shown in ({}, {"image_prompt": data_url(SHOWN)}, {"image_prompt": data_url(OTHER)}):
            for _ in range(2):
                await one.draw(**same, **shown)
        await one.draw(**same, image_prompt=data_url(SHOWN), image_prompt_scale=0.5)
        fields = [("prompt", "a red circle"), ("model", PAINTER), ("deterministic", "true"), ("seed", "3")]
        for body in (SHOWN, SHOWN, OTHER):
            await one.post(GENERATIONS, *form(fields, [("image_prompt", body)]))
        assert len(one.painter.painted) == 6  # the rest was kept

    run(test)


# SPEC F5: the router sends it to none that takes no image prompts
def test_a_smaller_model_may_answer_a_request_with_an_image_prompt() -> None:
    async def test() -> None:
        one = studio()
        await one.draw(allow_degrade=["model", "steps"], image_prompt=data_url(SHOWN))
        await one.draw(allow_degrade=["model", "steps"])
        assert [request.allow_degrade for request in one.painter.painted] == [("model", "steps")] * 2

    run(test)


# SPEC F1
def test_a_model_without_an_adapter_names_those_that_have_one() -> None:
    async def test() -> None:
        one = studio(None)
        reply = await one.draw(image_prompt=data_url(SHOWN))
        error = reply.json()["error"]
        assert (reply.status, error["param"]) == (400, "image_prompt")
        assert "no model here does" in error["message"]
        able = msgspec.structs.replace(LOOKS, image_prompt_scale=1.0)
        one.painter.cards.append(ModelCard("adapted", ("image",), 0, 1, 0, 0, pictures=able))
        message = (await one.draw(image_prompt=data_url(SHOWN))).json()["error"]["message"]
        assert f"`{PAINTER}` takes no `image_prompt`; these do: `adapted`" in message
        shown = (await one.get("/v1/models")).json()["data"]
        scales = {model["id"]: model["pictures"]["image_prompt_scale"] for model in shown if "pictures" in model}
        assert (scales[PAINTER], scales["adapted"]) == (None, 1.0)
        assert one.painter.painted == []

    run(test)


# SPEC M5, F1
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"image_prompt": "https://example.com/x.png"}, "image_prompt", "not fetched"),
        ({"image_prompt": {"file_id": "f"}}, "image_prompt", "not kept here"),
        ({"image_prompt": data_url(b"no picture")}, "image_prompt", "no PNG, JPEG or WebP"),
        ({"image_prompt": data_url(picture(64, 65))}, "image_prompt", "the limit is 4096"),
        ({"image_prompt": ""}, "image_prompt", ""),
        ({"image_prompt": 7}, "image_prompt", ""),
        ({"image_prompt": data_url(SHOWN), "image_prompt_scale": 2.5}, "image_prompt_scale", "2"),
        ({"image_prompt": data_url(SHOWN), "image_prompt_scale": -0.1}, "image_prompt_scale", "0"),
        ({"image_prompt_scale": 0.5}, "image_prompt_scale", "with an `image_prompt`"),
        ({"image_prompt_strength": 0.5}, "image_prompt_strength", "use image_prompt_scale"),
        ({"ip_adapter_image": data_url(SHOWN)}, "ip_adapter_image", "image_prompt"),
    ],
)
def test_what_is_no_image_prompt_is_refused_with_its_field(fields: dict[str, object], param: str, words: str) -> None:
    async def test() -> None:
        one = studio(settings=GatewaySettings(limits=LimitSettings(picture_pixels=4096)))
        reply = await one.draw(**fields)
        error = reply.json()["error"]
        assert (reply.status, error["param"]) == (400, param)
        assert words in error["message"]
        assert one.painter.painted == []

    run(test)


# SPEC M5
@pytest.mark.parametrize(
    ("path", "fields", "files", "words"),
    [
        (GENERATIONS, [], [("image_prompt", SHOWN)] * 2, "given twice"),
        (GENERATIONS, [("image_prompt", data_url(SHOWN))], [("image_prompt", SHOWN)], "as a file and as a field"),
        ("/v1/images/variations", [], [("image", SHOWN), ("image_prompt", SHOWN)], "takes no file `image_prompt`"),
        ("/v1/images/variations", [("image_prompt", "x")], [("image", SHOWN)], "/v1/images/generations"),
    ],
)
def test_a_form_that_says_too_much_is_refused(
    path: str, fields: list[tuple[str, str]], files: list[tuple[str, bytes]], words: str
) -> None:
    async def test() -> None:
        one = studio()
        if not path.endswith("variations"):
            fields.append(("prompt", "x"))
        reply = await one.post(path, *form([*fields, ("model", PAINTER)], files))
        assert reply.status == 400
        assert words in reply.json()["error"]["message"]

    run(test)
