"""What one session makes, chunk by chunk: frames, length, seed and words of each."""

import math
import secrets
from typing import Final, Literal

import msgspec

from headway.adapters.gateway.caller import Caller
from headway.adapters.gateway.pictures.checks import Files, check_negative
from headway.adapters.gateway.pictures.prepare import Asked, PicturePreparer, guidance_of
from headway.adapters.gateway.pictures.schema import SessionBody, SessionChange, VideoBody
from headway.adapters.gateway.pictures.sizes import first_chunk_frames
from headway.adapters.gateway.ports import PictureCard, Serving
from headway.adapters.gateway.refusals import listed
from headway.adapters.gateway.sampling import invalid
from headway.adapters.gateway.settings import SessionSettings
from headway.core.ids import RequestId
from headway.core.request import Content, DiffusionRequest, Slo
from headway.core.units import NS_PER_S, Ns

End = Literal["length", "limit"]  # of a session whose client does not stop it
_SOME: Final = b"-"  # stands for latents where only time is asked for


class Words(msgspec.Struct, frozen=True):
    """What a client may change on the way."""

    prompt: str
    negative_prompt: str
    guidance_scale: float
    passes: int  # of a step that is guided so


class Film(msgspec.Struct, frozen=True):
    """One session as it was asked for."""

    id: str
    asked: Asked
    slo_ns: Ns | None  # that each chunk may take; None: no promise
    ahead: int
    seconds: float | None  # None: until its client ends it
    chunks: int  # at most
    end: End

    @property
    def looks(self) -> PictureCard:
        """What its model makes."""
        return self.asked.looks

    @property
    def words(self) -> Words:
        """Of its first chunk."""
        request = self.asked.request
        said = request.content
        return Words(said.prompt, said.negative_prompt, request.guidance_scale, request.passes)

    @property
    def chunk_seconds(self) -> float:
        """That a chunk after the first plays."""
        return self.looks.chunk_frames / self.looks.fps

    def frames(self, number: int) -> int:
        """New ones of chunk `number`, from 0."""
        return self.looks.chunk_frames if number else first_chunk_frames(self.looks)

    def first_frame(self, number: int) -> int:
        """Where they begin in the whole video."""
        return self.frames(0) + (number - 1) * self.looks.chunk_frames if number else 0

    def length_ns(self, number: int) -> Ns:
        """How long they play."""
        return self.frames(number) * NS_PER_S // self.looks.fps

    def request(self, number: int, words: Words, given: bytes, at_ns: Ns, played_ns: Ns | None) -> DiffusionRequest:
        """Return chunk `number`, submitted at `at_ns`. `given`: the latents of the one before."""
        asked, looks = self.asked.request, self.looks
        trace, context = asked.trace, looks.context_frames
        if number and trace is not None:  # a span of its own below the session's
            trace = msgspec.structs.replace(trace, span_id=secrets.token_hex(8), parent_id=trace.span_id)
        return msgspec.structs.replace(
            asked,
            id=RequestId(f"{self.id}-{number}"),
            seed=asked.seed + number,
            arrived_ns=at_ns,
            slo=Slo(e2e_deadline_ns=None if self.slo_ns is None else at_ns + self.slo_ns),
            frames=self.frames(number) + (context if number else 0),
            given_frames=context if number else 0,
            hand_on=context if number + 1 < self.chunks else 0,
            guidance_scale=words.guidance_scale,
            passes=words.passes,
            content=Content(words.prompt, words.negative_prompt, form="mp4", given=given if number else b""),
            allow_degrade=tuple(one for one in asked.allow_degrade if one == "steps"),  # latents are of one model
            trace=trace,
            played_ns=played_ns,
        )

    def later(self) -> DiffusionRequest:
        """A chunk after the first, as far as its time and room go."""
        return self.request(1, self.words, _SOME, self.asked.request.arrived_ns, None)

    def changed(self, words: Words, change: SessionChange) -> Words:
        """Return the words of the chunks to come. Raises RequestError."""
        scale, passes = words.guidance_scale, words.passes
        if change.guidance_scale is not None:
            scale, passes = guidance_of(change.guidance_scale, self.looks, self.asked.card.id)
        negative = words.negative_prompt if change.negative_prompt is None else change.negative_prompt
        check_negative(negative, self.asked.card.id, self.looks, scale)
        return Words(words.prompt if change.prompt is None else change.prompt, negative, scale, passes)


class FilmPreparer:
    """Validates what sessions ask for."""

    def __init__(self, serving: Serving, painter: PicturePreparer, settings: SessionSettings) -> None:
        self._serving, self._painter, self._settings = serving, painter, settings

    def film(self, body: SessionBody, caller: Caller) -> Film:
        """Return the session. Raises RequestError."""
        settings = self._settings
        fields = {name: getattr(body, name) for name in body.__struct_fields__ if name in VideoBody.__struct_fields__}
        video = VideoBody(**fields | {"seconds": None})
        asked = self._painter.video(video, Files(), caller, b"")  # nothing is kept by the digest of a session
        looks, ahead = asked.looks, body.ahead or 1
        if not looks.chunk_frames:
            raise self._whole_only(asked.card.id)
        if body.deterministic and body.seed is None:
            raise invalid("seed", "`deterministic` chunks need a `seed`.")
        if ahead > settings.ahead_max:
            raise invalid("ahead", f"`ahead` is {ahead}; the limit is {settings.ahead_max} chunks.")
        if body.seconds is not None and body.seconds > settings.seconds_max:
            raise invalid("seconds", f"`seconds` is {body.seconds:g}; the limit is {settings.seconds_max:g}.")
        slo, name = caller.slo.e2e_deadline_ns, f"vs_{secrets.token_hex(12)}"
        slo_ns = None if slo is None else slo - caller.received_ns
        end: End = "limit" if body.seconds is None else "length"
        chunks = chunks_of(body.seconds or settings.seconds_max, looks, whole=end == "limit")
        return Film(name, asked, slo_ns, ahead, body.seconds, chunks, end)

    def _whole_only(self, model: str) -> Exception:
        cards = (card for card in self._serving.models() if card.pictures is not None and card.pictures.chunk_frames)
        names = [card.id for card in cards]
        there = f"in chunks there are {listed(names)}" if names else "no model here makes chunks"
        return invalid("model", f"The model `{model}` makes whole videos only; {there}.")


def chunks_of(seconds: float, looks: PictureCard, *, whole: bool) -> int:
    """Return the chunks of so many seconds: as many as are needed, or as fit `whole` into them, but at least one."""
    more = round((seconds * looks.fps - first_chunk_frames(looks)) / looks.chunk_frames, 6)
    return 1 + max(0, math.floor(more) if whole else math.ceil(more))
