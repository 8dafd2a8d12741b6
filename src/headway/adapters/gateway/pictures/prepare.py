"""From a parsed body to a request of the ring, and to what its answer repeats."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headway.adapters.gateway.caller import Caller
from headway.adapters.gateway.pictures.checks import LOSSLESS, Files, check, check_answer, check_files, check_negative
from headway.adapters.gateway.pictures.image_prompts import image_prompt_of
from headway.adapters.gateway.pictures.inputs import linked
from headway.adapters.gateway.pictures.schema import (
    DiffusionBody,
    EditBody,
    ImageLink,
    PictureBody,
    VariationBody,
    VideoBody,
)
from headway.adapters.gateway.pictures.sizes import frames_of, pixels_of, seconds_of
from headway.adapters.gateway.ports import ModelCard, PictureCard, Serving
from headway.adapters.gateway.prepare import Models
from headway.adapters.gateway.refusals import listed
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.settings import LimitSettings
from headway.core.errors import RequestError
from headway.core.ids import ModelId, RequestId
from headway.core.request import Content, DiffusionRequest

SEED_BITS: Final = 31
EDIT_STRENGTH: Final = 0.8  # of an edit that names none
VARIATION_STRENGTH: Final = 0.5
QUALITY: Final = 90  # of a lossy picture that names none

Parameters = dict[str, object]


class Asked(msgspec.Struct, frozen=True):
    """One request for pictures or a video. `digest`: of everything in it that decides its pictures."""

    card: ModelCard
    request: DiffusionRequest
    size: str
    parameters: Parameters
    digest: bytes

    @property
    def looks(self) -> PictureCard:
        """What its model makes."""
        assert self.card.pictures is not None  # `Preparer` asks only such models
        return self.card.pictures


def as_it_ran(asked: Asked, degraded: Mapping[str, int | str], cards: Sequence[ModelCard]) -> Asked:
    """Return what was really run after admission took something away: fewer steps, or another model with its own
    guidance."""
    request, card, parameters = asked.request, asked.card, dict(asked.parameters)
    steps, model = degraded.get("steps"), degraded.get("model")
    if isinstance(steps, int):
        request = msgspec.structs.replace(request, steps=steps)
        parameters["num_inference_steps"] = steps
    if isinstance(model, str):  # also where it has gone meanwhile: it is metered
        request = msgspec.structs.replace(request, model=ModelId(model))
    other = next((one for one in cards if one.id == model and one.pictures is not None), None)
    if other is not None and other.pictures is not None:
        card, scale = other, other.pictures.guidance_scale
        request = msgspec.structs.replace(request, guidance_scale=scale)
        parameters["guidance_scale"] = scale
    return msgspec.structs.replace(asked, card=card, request=request, parameters=parameters)


class PicturePreparer:
    """Validates requests for pictures and videos."""

    def __init__(self, serving: Serving, models: Models, limits: LimitSettings) -> None:
        self._serving, self._models, self._limits = serving, models, limits

    def image(self, body: PictureBody, files: Files, caller: Caller, digest: bytes, *, is_async: bool = False) -> Asked:
        """Prepare pictures. Raises RequestError."""
        card = self._card(body.model, "image")
        files = _with_links(body, files)
        check_answer(body, is_async=is_async)
        return self._asked(body, card, files, caller, digest)

    def video(self, body: VideoBody, files: Files, caller: Caller, digest: bytes) -> Asked:
        """Prepare a video. Raises RequestError."""
        card = self._card(body.model, "video")
        if body.input_reference is not None:
            files = Files((*files.pictures, linked(body.input_reference, "input_reference")))
        if len(files.pictures) > 1:
            raise invalid(
                "input_reference", f"`input_reference` is given {len(files.pictures)} times; a video has one."
            )
        return self._asked(body, card, files, caller, digest)

    def _card(self, name: str | None, kind: str) -> ModelCard:
        if name is not None:
            card = self._models.card(name)
            if kind not in card.modalities or card.pictures is None:
                made = ", ".join(card.modalities)
                raise invalid("model", f"The model `{name[:256]}` generates {made}, not {kind}.")
            return card
        found = self._models.only(kind)
        if isinstance(found, list):
            there = f"one of {listed(found)}" if found else f"no model here generates {kind}"
            message = f"Missing required parameter: `model`; {there}."
            raise RequestError(message, code="missing_required_parameter", param="model")
        return found

    def _asked(self, body: DiffusionBody, card: ModelCard, files: Files, caller: Caller, digest: bytes) -> Asked:
        looks = card.pictures
        assert looks is not None  # `_card` refuses others
        check(body, card, looks, caller)
        check_files(files, card.id, looks, self._limits)
        shown = image_prompt_of(body, files, card, self._serving.models(), self._limits)
        width, height = pixels_of(body.size, looks, card.id)
        is_video = isinstance(body, VideoBody)
        seconds = seconds_of(body.seconds, looks, card.id) if isinstance(body, VideoBody) else 0
        scale, passes = guidance_of(body.guidance_scale, looks, card.id)
        check_negative(body.negative_prompt, card.id, looks, scale)
        seed = body.seed
        if seed is None:  # a `deterministic` request without a seed takes its own
            seed = int.from_bytes(digest[:4]) >> 1 if body.deterministic else secrets.randbelow(1 << SEED_BITS)
        strength = _strength(body, files)
        request = DiffusionRequest(
            id=RequestId(f"{'video' if is_video else 'img'}_{secrets.token_hex(12)}"),
            tenant=caller.tenant.id,
            model=ModelId(card.id),
            steps=body.num_inference_steps or looks.steps,
            height=height,
            width=width,
            seed=seed,
            arrived_ns=self._serving.now_ns(),
            slo=caller.slo,
            urgency=-(body.priority or 0),
            frames=frames_of(seconds, looks) if is_video else 1,
            fps=looks.fps,
            guidance_scale=scale,
            passes=passes,
            n=(body.n or 1) if isinstance(body, PictureBody) else 1,
            strength=1.0 if strength is None else strength,
            deterministic=bool(body.deterministic),
            content=_content(body, files),
            tenant_weight=caller.tenant.weight,
            allow_degrade=tuple(dict.fromkeys((*(body.allow_degrade or ()), *caller.tenant.allow_degrade))),
            trace=caller.trace.context(0, "video_generation" if is_video else "image_generation"),
        )
        if shown is not None:
            request = shown.beside(request)
        size = f"{width}x{height}"
        return Asked(card, request, size, _parameters(request, size, seconds, strength), digest)


def _with_links(body: PictureBody, files: Files) -> Files:
    if not isinstance(body, EditBody | VariationBody):
        return files
    pictures, mask = list(files.pictures), files.mask
    pictures += [linked(link, f"images[{number}]") for number, link in enumerate(body.images or [])]
    if isinstance(body, EditBody) and isinstance(body.mask, ImageLink):
        mask = linked(body.mask, "mask")
    if not pictures:
        message = "Missing required parameter: `image`; a file of the form, or `images` in a JSON body."
        raise RequestError(message, code="missing_required_parameter", param="image")
    return Files(tuple(pictures), mask, files.image_prompt)


def guidance_of(asked: float | None, looks: PictureCard, model: str) -> tuple[float, int]:
    """Return the scale and the passes of a step; inside, scale 0 stands for the model's own. Up to 1 a second pass
    changes nothing and is not made. Raises RequestError."""
    if asked == 0 and looks.passes == 1:
        raise invalid("guidance_scale", f"`guidance_scale` is 0; it is an input of `{model}` and must be above 0.")
    scale = looks.guidance_scale if asked is None else asked or 1.0
    return scale, looks.passes if scale > 1 else min(1, looks.passes)


def _strength(body: DiffusionBody, files: Files) -> float | None:
    """None: nothing to start from."""
    if not isinstance(body, EditBody | VariationBody | VideoBody):
        return None
    if not files.pictures:
        if body.strength is not None:
            raise invalid("strength", "`strength` belongs to requests that bring a picture.")
        return None
    if body.strength is not None:
        return body.strength
    return VARIATION_STRENGTH if isinstance(body, VariationBody) else EDIT_STRENGTH


def _content(body: DiffusionBody, files: Files) -> Content:
    prompt = getattr(body, "prompt", "")
    negative = body.negative_prompt or ""
    if not isinstance(body, PictureBody):
        return Content(prompt, negative, files.pictures, form="mp4", previews=body.partial_images or 0)
    form = body.output_format or "png"
    quality = body.output_compression
    if quality is None:
        quality = LOSSLESS if form == "png" else QUALITY
    return Content(prompt, negative, files.pictures, files.mask, form, quality, body.partial_images or 0)


def _parameters(request: DiffusionRequest, size: str, seconds: int, strength: float | None) -> Parameters:
    """What is really used of everything that a client may leave out."""
    out: Parameters = {
        "num_inference_steps": request.steps,
        "guidance_scale": request.guidance_scale,
        "negative_prompt": request.content.negative_prompt,
        "seed": request.seed,
        "size": size,
        "deterministic": request.deterministic,
    }
    if strength is not None:
        out["strength"] = strength
    if request.image_prompts:
        out["image_prompts"], out["image_prompt_scale"] = request.image_prompts, request.image_prompt_scale
    if seconds:
        return {**out, "seconds": seconds, "fps": request.fps, "frames": request.frames}
    return {**out, "n": request.n}
