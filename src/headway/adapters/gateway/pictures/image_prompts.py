"""A picture beside the words, which an IP-Adapter attends to: who takes one, and how much it counts (SPEC F1)."""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.adapters.gateway.pictures.checks import Files
from headway.adapters.gateway.pictures.inputs import checked, linked
from headway.adapters.gateway.pictures.schema import DiffusionBody, PromptedBody
from headway.adapters.gateway.ports import ModelCard
from headway.adapters.gateway.refusals import listed
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.settings import LimitSettings
from headway.core.request import DiffusionRequest

_FIELD: Final = "image_prompt"


class ImagePrompt(msgspec.Struct, frozen=True):
    """What was asked for, or the model's scale."""

    picture: bytes
    scale: float

    def beside(self, request: DiffusionRequest) -> DiffusionRequest:
        """The request with it."""
        return msgspec.structs.replace(
            request,
            image_prompts=1,
            image_prompt_scale=self.scale,
            content=msgspec.structs.replace(request.content, image_prompts=(self.picture,)),
        )


def image_prompt_of(
    body: DiffusionBody, files: Files, card: ModelCard, cards: Sequence[ModelCard], limits: LimitSettings
) -> ImagePrompt | None:
    """Return the image prompt of a request for `card`; None: it has none. Raises RequestError."""
    if not isinstance(body, PromptedBody):
        return None
    picture = files.image_prompt
    if body.image_prompt is not None:
        if picture is not None:
            raise invalid(_FIELD, f"`{_FIELD}` is given twice, as a file and as a field.")
        picture = linked(body.image_prompt, _FIELD)
    if picture is None:
        if body.image_prompt_scale is not None:
            raise invalid("image_prompt_scale", "`image_prompt_scale` belongs to requests with an `image_prompt`.")
        return None
    usual = _scale_of(card)
    if usual is None:
        able = [other.id for other in cards if _scale_of(other) is not None]
        there = f"these do: {listed(able)}" if able else "no model here does (`diffusion[].ip_adapter`)"
        raise invalid(_FIELD, f"The model `{card.id}` takes no `{_FIELD}`; {there}.")
    checked(picture, _FIELD, limits)
    return ImagePrompt(picture, usual if body.image_prompt_scale is None else body.image_prompt_scale)


def _scale_of(card: ModelCard) -> float | None:
    return None if card.pictures is None else card.pictures.image_prompt_scale
