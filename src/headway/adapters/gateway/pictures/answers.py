"""Answers of the image routes as OpenAI's objects, with what else a picture has: seeds, cost, parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from headway.adapters.gateway.pictures.prepare import Asked, Parameters
from headway.core.artifacts import Made, PromptRead
from headway.core.evidence import WorkerMarks
from headway.core.units import Ns, s_from_ns

MEDIA_TYPES: Final = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}

_encode: Final = msgspec.json.Encoder().encode


class Picture(msgspec.Struct, frozen=True, omit_defaults=True):
    """One picture: its bytes (base64 on the wire), or where to fetch it."""

    seed: int
    b64_json: bytes | None = None
    url: str | None = None


class TokenDetails(msgspec.Struct, frozen=True):
    """What the tokens of a request stand for."""

    text_tokens: int
    image_tokens: int


class ImageUsage(msgspec.Struct, frozen=True):
    """Tokens that the model attends to: those of the prompt that were read, without padding where the engine tells them
    (else as many as the model pads it to), and latent patches of every picture."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: TokenDetails
    output_tokens_details: TokenDetails


class Cost(msgspec.Struct, frozen=True):
    """What was spent."""

    gpu_seconds: float
    price_usd: float
    stage_seconds: dict[str, float]


class ImageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's `ImagesResponse`, and ours below `usage`."""

    created: int
    data: list[Picture]
    background: str = "opaque"
    output_format: str
    quality: str = "auto"
    size: str
    usage: ImageUsage
    id: str
    model: str  # that made it
    requested_model: str | msgspec.UnsetType = msgspec.UNSET  # unset: an answer kept by an earlier version
    seeds: list[int]
    parameters: Parameters
    gpu_seconds: float
    price_usd: float
    stage_seconds: dict[str, float]
    degraded: dict[str, int | str] | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET  # what of the request had no effect
    cached: bool | msgspec.UnsetType = msgspec.UNSET  # true: an earlier answer to a `deterministic` request


def cost_of(marks: WorkerMarks | None, usd: Callable[[float], float]) -> Cost:
    """Return device time, and what `usd` says that it costs. Denoising is what no other stage took."""
    if marks is None:
        return Cost(0.0, usd(0.0), {})
    others: dict[str, Ns] = {
        "text_encode": marks.text_encode_ns,
        "vae_encode": marks.vae_encode_ns,
        "vae_decode": marks.vae_decode_ns,
    }
    denoise_ns = max(0, marks.device_ns - sum(others.values()))
    stages = {"text_encode": 0, "vae_encode": 0, "denoise": denoise_ns, "vae_decode": 0} | others
    gpu_seconds = s_from_ns(marks.device_ns)
    return Cost(gpu_seconds, usd(gpu_seconds), {name: s_from_ns(took) for name, took in stages.items()})


def usage_of(asked: Asked, read: PromptRead | None) -> ImageUsage:
    """Return OpenAI's usage object."""
    request, looks = asked.request, asked.looks
    patches = (request.height // looks.multiple) * (request.width // looks.multiple)
    text = looks.text_tokens if read is None else read.tokens
    brought, made = patches * len(request.content.pictures), patches * request.n
    return ImageUsage(text + brought, made, text + brought + made, TokenDetails(text, brought), TokenDetails(0, made))


def image_answer(
    asked: Asked, made: Sequence[Made], created: int, cost: Cost, degraded: Mapping[str, int | str]
) -> ImageAnswer:
    """Return the whole answer, its pictures inside it; `asked` as it ran."""
    read = made[0].read if made else None
    seeds = [asked.request.seed + one.index if one.seed is None else one.seed for one in made]
    return ImageAnswer(
        created=created,
        data=[Picture(seed, one.body) for seed, one in zip(seeds, made, strict=True)],
        output_format=asked.request.content.form,
        size=asked.size,
        usage=usage_of(asked, read),
        id=asked.request.id,
        model=asked.request.model,
        requested_model=asked.request.model,
        seeds=seeds,
        parameters=asked.parameters,
        gpu_seconds=cost.gpu_seconds,
        price_usd=cost.price_usd,
        stage_seconds=cost.stage_seconds,
        degraded=dict(degraded) or msgspec.UNSET,
        warnings=list(read.warnings) if read is not None and read.warnings else msgspec.UNSET,
    )


def with_urls(answer: ImageAnswer, origin: str) -> ImageAnswer:
    """Return the answer with addresses in place of pictures."""
    data = [
        Picture(one.seed, url=f"{origin}/v1/images/{answer.id}/content" + (f"?variant={number}" if number else ""))
        for number, one in enumerate(answer.data)
    ]
    return msgspec.structs.replace(answer, data=data)


class _Frame(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    b64_json: bytes
    created_at: int
    size: str
    quality: str = "auto"
    background: str = "opaque"
    output_format: str
    partial_image_index: int | msgspec.UnsetType = msgspec.UNSET
    index: int = 0  # which of n pictures
    progress: int | msgspec.UnsetType = msgspec.UNSET  # hundredths of its believed time


def partial_event(kind: str, asked: Asked, made: Made, index: int, created: int, progress: int) -> bytes:
    """Render a picture on its way, the first of n; `kind` is image_generation or image_edit."""
    name = f"{kind}.partial_image"
    frame = _Frame(
        type=name,
        b64_json=made.body,
        created_at=created,
        size=asked.size,
        output_format=asked.request.content.form,
        partial_image_index=index,
        progress=progress,
    )
    return _event(name, _encode(frame))


def completed_events(kind: str, answer: ImageAnswer) -> list[bytes]:
    """Render each finished picture in an event of its own, with all that a whole answer has. The `usage` of the events
    adds up to that of the answer; cost and time are of the whole request in each."""
    name = f"{kind}.completed"
    rest = {field: getattr(answer, field) for field in answer.__struct_fields__ if field not in ("data", "created")}
    rest = {field: value for field, value in rest.items() if value is not msgspec.UNSET}
    shares = _shares(answer.usage, len(answer.data))
    return [
        _event(
            name,
            _encode(
                {
                    "type": name,
                    "b64_json": one.b64_json,
                    "created_at": answer.created,
                    "index": index,
                    "seed": one.seed,
                    **rest,
                    "usage": usage,
                }
            ),
        )
        for index, (one, usage) in enumerate(zip(answer.data, shares, strict=True))
    ]


def _shares(whole: ImageUsage, count: int) -> list[ImageUsage]:
    """What went in counts with the first picture, what came out in equal parts."""
    part, nothing = whole.output_tokens // count, TokenDetails(0, 0)
    made = TokenDetails(0, part)
    first = ImageUsage(whole.input_tokens, part, whole.input_tokens + part, whole.input_tokens_details, made)
    return [first, *(ImageUsage(0, part, part, nothing, made) for _ in range(count - 1))]


def _event(name: str, body: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), body)
