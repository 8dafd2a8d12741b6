"""What a session is predicted to take: before it is opened, and for `POST /v1/estimates`."""

from typing import Final

import msgspec

from headway.adapters.gateway.caller import Caller
from headway.adapters.gateway.estimates import rounded
from headway.adapters.gateway.job_ports import Usage
from headway.adapters.gateway.parse import parse_body
from headway.adapters.gateway.pictures.estimates import PictureEstimates, untold
from headway.adapters.gateway.pictures.prepare import Asked, PicturePreparer
from headway.adapters.gateway.pictures.schema import SESSIONS, SessionBody
from headway.adapters.gateway.playback.film import Film, FilmPreparer
from headway.adapters.gateway.ports import PictureEstimate, Serving
from headway.adapters.gateway.prices import today
from headway.adapters.gateway.settings import GatewaySettings

MINUTE_S: Final = 60.0


class Predicted(msgspec.Struct, frozen=True):
    """The first chunk of a session, and each that follows: the same one where there is only one."""

    first: PictureEstimate
    later: PictureEstimate

    @property
    def chunk_s(self) -> float:
        """Seconds that a later chunk takes, alone, once its shape has run."""
        return sum(self.later.stages.values())

    @property
    def chunk_gpu_s(self) -> float:
        """Device seconds of it."""
        whole_s = self.chunk_s + self.later.cold_s
        return self.later.gpu_seconds * self.chunk_s / whole_s if whole_s else self.later.gpu_seconds

    @property
    def unservable(self) -> str | None:
        """Why no replica has room for it."""
        return self.first.unservable or self.later.unservable

    def gpu_s(self, chunks: int) -> float:
        """Device seconds of so many chunks."""
        more = self.later.gpu_seconds + (chunks - 2) * self.chunk_gpu_s if chunks > 1 else 0.0
        return self.first.gpu_seconds + more

    def keeps_up(self, film: Film) -> bool:
        """Whether chunks are made no slower than they are played."""
        return self.chunk_s <= film.chunk_seconds


def predicted(serving: Serving, film: Film) -> Predicted | None:
    """Return what it takes; None where nobody can tell. Raises CapacityError where its model has no replica."""
    first = serving.foresee(film.request(0, film.words, b"", film.asked.request.arrived_ns, None))
    later = first if film.chunks == 1 else serving.foresee(film.later())
    return None if first is None or later is None else Predicted(first, later)


class Estimates:
    """`POST /v1/estimates` for pictures, videos and sessions."""

    def __init__(self, serving: Serving, painter: PicturePreparer, settings: GatewaySettings) -> None:
        self._serving, self._sheet = serving, settings.sheet
        self._pictures = PictureEstimates(serving, painter, settings)
        self._films = FilmPreparer(serving, painter, settings.sessions)

    def prepare(self, endpoint: str, raw: bytes, caller: Caller) -> Asked:
        """Return what `endpoint` would run; of a session its first chunk. Raises RequestError."""
        if endpoint != SESSIONS:
            return self._pictures.prepare(endpoint, raw, caller)
        film = self._film(raw, caller)
        first = film.request(0, film.words, b"", film.asked.request.arrived_ns, None)
        return msgspec.structs.replace(film.asked, request=first)

    def answer(self, endpoint: str, raw: bytes, caller: Caller) -> dict[str, object]:
        """Return time, device time and price. Raises RequestError; CapacityError while nothing is known."""
        if endpoint != SESSIONS:
            return self._pictures.answer(endpoint, raw, caller)
        film = self._film(raw, caller)
        found = predicted(self._serving, film)
        if found is None:
            raise untold(film.asked.card.id)
        return self._told(film, found)

    def _film(self, raw: bytes, caller: Caller) -> Film:
        return self._films.film(parse_body(raw, SessionBody, {}), caller)

    def _told(self, film: Film, found: Predicted) -> dict[str, object]:
        """All of it for as long as it may play; a chunk of it once it plays."""
        first, later, played_s = found.first, found.later, film.chunk_seconds
        model, tenant = film.asked.request.model, film.asked.request.tenant
        memory = [one.memory_bytes for one in (first, later) if one.memory_bytes is not None]

        def usd(spent: float, frames: float, requests: int) -> float:
            return self._sheet.usd(Usage(tenant, model, today(), spent, 0, round(frames), requests))

        whole_s, frames = found.gpu_s(film.chunks), film.first_frame(film.chunks)
        minute_s, minute_frames = found.chunk_gpu_s * MINUTE_S / played_s, film.looks.fps * MINUTE_S
        return {
            "model": model,
            "requested_model": model,
            "degraded": first.degraded or None,
            "gpu_seconds": rounded(whole_s),
            "price_usd": rounded(usd(whole_s, frames, 1)),
            "memory_bytes": max(memory) if len(memory) == 2 else None,
            "verdict": first.verdict if found.unservable is None else "reject",
            "stage_seconds": {name: rounded(took) for name, took in later.stages.items()},
            "cold_start": first.is_cold or later.is_cold,
            "chunks": film.chunks,
            "frames": frames,
            "chunk_seconds": played_s,
            "first_chunk_s": rounded(first.eta_s),
            "predicted_chunk_seconds": rounded(found.chunk_s),
            "chunk_gpu_seconds": rounded(found.chunk_gpu_s),
            "gpu_seconds_per_second": rounded(found.chunk_gpu_s / played_s),
            "price_usd_per_minute": rounded(usd(minute_s, minute_frames, 0)),
            "realtime_factor": rounded(played_s / found.chunk_s) if found.chunk_s else None,
            "realtime": found.keeps_up(film),
        }
