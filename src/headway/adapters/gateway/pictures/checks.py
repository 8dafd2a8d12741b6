"""What a model and this server take of a request for pictures or a video. Every refusal names its field."""

from typing import Final

import msgspec

from headway.adapters.gateway.caller import Caller
from headway.adapters.gateway.pictures.inputs import checked, wrong
from headway.adapters.gateway.pictures.schema import DiffusionBody, PictureBody
from headway.adapters.gateway.ports import ModelCard, PictureCard
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.settings import LimitSettings

LOSSLESS: Final = 100


class Files(msgspec.Struct, frozen=True):
    """Pictures that came with a body."""

    pictures: tuple[bytes, ...] = ()
    mask: bytes | None = None
    image_prompt: bytes | None = None


def check(body: DiffusionBody, card: ModelCard, looks: PictureCard, caller: Caller) -> None:
    """Raise RequestError for what the tenant may not ask, or the model cannot."""
    floor, priority = caller.tenant.priority_floor, body.priority or 0
    if floor is not None and priority < floor:
        raise invalid("priority", f"`priority` is {priority}; the floor of this tenant is {floor}.")
    steps = body.num_inference_steps
    if steps is not None and steps > looks.steps_max:
        message = f"`num_inference_steps` is {steps}; `{card.id}` runs 1 to {looks.steps_max}."
        raise invalid("num_inference_steps", message)
    if body.lora:
        raise invalid("lora", f"`{card.id}` has no adapter `{body.lora[0].id}`: none are loaded; leave `lora` out.")


def check_negative(asked: str | None, model: str, looks: PictureCard, scale: float) -> None:
    """Raise RequestError for words that no pass of the model would read at that guidance scale: every replica would
    refuse them."""
    if asked and looks.passes < 2:
        raise invalid("negative_prompt", f"`{model}` takes no negative prompt; leave `negative_prompt` out.")
    if asked and scale <= 1:
        raise invalid(
            "negative_prompt",
            f"`negative_prompt` needs `guidance_scale` above 1, which is {scale:g}; raise it, or leave the words out.",
        )


def check_answer(body: PictureBody, *, is_async: bool) -> None:
    """Raise RequestError for ways of answering that exclude each other."""
    if body.partial_images and not body.stream and not is_async:
        raise invalid("partial_images", "`partial_images` needs `stream`, or the header `prefer: respond-async`.")
    if body.stream and is_async:
        raise invalid("stream", "`stream` and `prefer: respond-async` exclude each other.")
    if body.stream and body.response_format == "url":
        raise invalid("response_format", "A stream carries its pictures itself: leave `response_format` out.")
    if body.webhook_url is not None and not is_async:
        raise invalid("webhook_url", "`webhook_url` needs the header `prefer: respond-async`.")
    if body.output_compression not in (None, LOSSLESS) and (body.output_format or "png") == "png":
        raise invalid("output_compression", "`output_compression` needs `output_format` jpeg or webp.")


def check_files(files: Files, model: str, looks: PictureCard, limits: LimitSettings) -> None:
    """Raise RequestError for pictures that are none, too many, too large, or not for this model."""
    pictures, mask = files.pictures, files.mask
    if pictures and not looks.edits:
        raise invalid("model", f"The model `{model}` takes no pictures to start from.")
    if mask is not None and not looks.masks:
        raise invalid("mask", f"The model `{model}` edits whole pictures; leave `mask` out.")
    if len(pictures) > limits.pictures:
        raise invalid("image", f"{len(pictures)} pictures are given, the limit is {limits.pictures}.")
    found = [checked(picture, "image", limits) for picture in pictures]
    if mask is None:
        return
    declared = checked(mask, "mask", limits)
    if declared.form != "png":
        raise wrong("mask", f"it is a {declared.form}; a mask is a PNG whose transparent part is edited")
    if (declared.width, declared.height) != (found[0].width, found[0].height):
        sizes = f"{declared.width}x{declared.height}, the picture {found[0].width}x{found[0].height}"
        raise wrong("mask", f"it has {sizes}")
