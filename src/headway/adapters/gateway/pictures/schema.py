"""Bodies of the image and video routes as structs: OpenAI's fields, then ours. Null is the same as absent."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headway.adapters.gateway.fields import Unsupported
from headway.adapters.gateway.schema import Count, Degradation, Name

Prompt = Annotated[str, Meta(min_length=1, max_length=32_000)]
Size = Annotated[str, Meta(min_length=1, max_length=16)]  # WxH, or auto
Seed = Annotated[int, Meta(ge=0, le=2**63 - 16)]  # picture k of n uses seed + k
Steps = Annotated[int, Meta(ge=1, le=10_000)]
Length = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # seconds of a video; the model says which it makes
Scale = Annotated[float, Meta(ge=0, le=100)]
ImageScale = Annotated[float, Meta(ge=0, le=2)]


class LoraAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One adapter; scale 0 keeps it resident without effect."""

    id: Name
    scale: Annotated[float, Meta(ge=-10, le=10)] = 1.0


class ImageLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture inside a JSON body: as a `data:` URL. Others are not fetched."""

    image_url: str | None = None
    file_id: str | None = None


class DiffusionBody(msgspec.Struct, frozen=True, kw_only=True):
    """What images and videos share."""

    model: Name | None = None
    size: Size | None = None
    negative_prompt: Annotated[str, Meta(max_length=32_000)] | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Scale | None = None
    seed: Seed | None = None
    lora: Annotated[list[LoraAsked], Meta(max_length=16)] | None = None
    deterministic: bool | None = None
    priority: Annotated[int, Meta(ge=1 - 2**31, le=2**31 - 1)] | None = None  # its negative fits the job table too
    allow_degrade: Annotated[list[Degradation], Meta(max_length=8)] | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None
    webhook_url: Annotated[str, Meta(min_length=1, max_length=2048)] | None = None


class PictureBody(DiffusionBody, frozen=True, kw_only=True):
    """What the image routes share."""

    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    response_format: Literal["url", "b64_json"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    stream: bool | None = None


class PromptedBody(PictureBody, frozen=True, kw_only=True):
    """Of these routes, those that have words. A form may have a file `image_prompt`, JSON has a `data:` URL."""

    prompt: Prompt
    image_prompt: Annotated[str, Meta(min_length=1)] | ImageLink | None = None
    image_prompt_scale: ImageScale | None = None


class ImageBody(PromptedBody, frozen=True, kw_only=True):
    """Body of `POST /v1/images/generations`."""


class EditBody(PromptedBody, frozen=True, kw_only=True):
    """Body of `POST /v1/images/edits`. A form has files `image` (or `image[]`) and `mask`, JSON has `images`."""

    images: list[ImageLink] | None = None
    mask: ImageLink | None = None
    strength: Annotated[float, Meta(gt=0, le=1)] | None = None


class VariationBody(PictureBody, frozen=True, kw_only=True):
    """Body of `POST /v1/images/variations`: an edit without words."""

    images: list[ImageLink] | None = None
    strength: Annotated[float, Meta(gt=0, le=1)] | None = None


class VideoBody(DiffusionBody, frozen=True, kw_only=True):
    """Body of `POST /v1/videos`. `seconds` may be a text, as clients send it."""

    prompt: Prompt
    seconds: Length | Annotated[str, Meta(max_length=16)] | None = None
    input_reference: ImageLink | None = None
    strength: Annotated[float, Meta(gt=0, le=1)] | None = None


class RemixBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/videos/{id}/remix`: the same video with another prompt, from the same picture if it had one."""

    prompt: Prompt


SESSIONS: Final = "/v1/videos/sessions"


class SessionBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/videos/sessions`. Chunk k has the seed `seed + k`."""

    prompt: Prompt
    model: Name | None = None
    negative_prompt: Annotated[str, Meta(max_length=32_000)] | None = None
    size: Size | None = None
    seed: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Scale | None = None
    deterministic: bool | None = None
    priority: Annotated[int, Meta(ge=1 - 2**31, le=2**31 - 1)] | None = None
    allow_degrade: Annotated[list[Literal["steps"]], Meta(max_length=8)] | None = None
    seconds: Annotated[float, Meta(gt=0)] | None = None  # of video; None: until it is stopped
    ahead: Count | None = None  # chunks that are made before they are played
    require_realtime: bool | None = None


class SessionChange(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/videos/sessions/{id}`: from the next chunk on that has not been begun."""

    prompt: Prompt | None = None
    negative_prompt: Annotated[str, Meta(max_length=32_000)] | None = None
    guidance_scale: Scale | None = None


# Of OpenAI's hosted models. Values in `inert` are what is served anyway.
NOT_SERVED: Final[Mapping[str, Unsupported]] = {
    "quality": Unsupported("use num_inference_steps", (None, "auto", "standard")),
    "background": Unsupported("pictures have no transparent parts", (None, "auto", "opaque")),
    "style": Unsupported("say it in the prompt", (None,)),
    "moderation": Unsupported("nothing is filtered here", (None, "auto", "low")),
    "input_fidelity": Unsupported("use strength", (None,)),
    "complexity": Unsupported("only pixels are made", (None,)),
    "frame_count": Unsupported("moving pictures are made by /v1/videos", (None,)),
    "frame_duration_ms": Unsupported("moving pictures are made by /v1/videos", (None,)),
    "svg": Unsupported("only pixels are made", (None,)),
    "strength": Unsupported("it belongs to requests that bring a picture", (None,)),
    "image_prompt": Unsupported("it belongs to /v1/images/generations and /v1/images/edits", (None,)),
    "image_prompt_scale": Unsupported("it belongs to `image_prompt`", (None,)),
    "ip_adapter_image": Unsupported("it is called image_prompt", (None,)),
    "image_prompt_strength": Unsupported(
        "use image_prompt_scale: it adds the picture, and takes nothing from the words", (None,)
    ),
    "ip_adapter_scale": Unsupported("it is called image_prompt_scale", (None,)),
    "prompt": Unsupported("a variation has no words; use /v1/images/edits", (None,)),
}
