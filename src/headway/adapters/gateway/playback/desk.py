"""The open sessions of this gateway: who may open one, and whose they are."""

from typing import Final

from headway.adapters.gateway.caller import Caller
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.job_ports import Answers, IdempotencyKey
from headway.adapters.gateway.pictures.estimates import untold
from headway.adapters.gateway.pictures.jobs import owner
from headway.adapters.gateway.pictures.prepare import PicturePreparer
from headway.adapters.gateway.pictures.schema import SessionBody
from headway.adapters.gateway.playback.film import Film, FilmPreparer
from headway.adapters.gateway.playback.once import Once
from headway.adapters.gateway.playback.predicted import Predicted, predicted
from headway.adapters.gateway.playback.run import Around, SessionRun
from headway.adapters.gateway.tenants import Tenant
from headway.core.errors import CapacityError, RequestError

RETRY_MS: Final = 5000


class Sessions(dict[str, SessionRun]):
    """Open sessions by id. That a session stands here is all that is counted of it."""

    def of(self, tenant: Tenant) -> list[SessionRun]:
        """Those that the tenant may see, oldest first."""
        whose = owner(tenant)
        return [run for run in self.values() if whose in (None, run.caller.tenant.id)]


class SessionDesk:
    """Opens sessions and finds them again."""

    def __init__(self, runs: Sessions, painter: PicturePreparer, answers: Answers, around: Around) -> None:
        self._runs, self._around, self._once = runs, around, Once(answers)
        self._limits = around.settings.sessions
        self._preparer = FilmPreparer(around.serving, painter, self._limits)

    async def play(self, exchange: Exchange, caller: Caller, body: SessionBody, key: IdempotencyKey | None) -> None:
        """Open a session and play it to its end. Raises RequestError and CapacityError for what is refused before its
        stream begins, ClientLeft."""
        film = self._preparer.film(body, caller)
        found = self._predicted(film, needs_realtime=bool(body.require_realtime))

        async def play() -> str | None:
            self._require_room(caller.tenant)
            run = self._runs[film.id] = SessionRun(film, caller, exchange, self._around)
            try:
                return await run.answer(found)
            finally:
                del self._runs[film.id]

        await self._once.play(caller.tenant.id, key, film.id, play)

    def _require_room(self, tenant: Tenant) -> None:
        limits = self._limits
        own = sum(run.caller.tenant.id == tenant.id for run in self._runs.values())
        if own >= limits.tenant_open_max:
            message = f"{own} sessions of this tenant are open, the limit is {limits.tenant_open_max}; end one of them."
            raise CapacityError(message, status=429, code="quota_exceeded", retry_after_ms=RETRY_MS)
        if len(self._runs) >= limits.open_max:
            message = f"{len(self._runs)} sessions are open, the limit is {limits.open_max}; try again later."
            raise CapacityError(message, status=503, code="queue_full", retry_after_ms=RETRY_MS)

    def _predicted(self, film: Film, *, needs_realtime: bool) -> Predicted | None:
        """Return what it is believed to take; None where nobody can tell. Raises RequestError for what no replica has
        the memory for, and for what is to be in real time and is not."""
        found = predicted(self._around.serving, film)
        if found is None:
            if needs_realtime:
                raise untold(film.asked.card.id)
            return None
        if found.unservable is not None:
            raise RequestError(found.unservable, code="unservable")
        if needs_realtime and not found.keeps_up(film):
            raise RequestError(
                f"A chunk is predicted to take {found.chunk_s:.2f} s and plays for {film.chunk_seconds:g} s; ask for "
                "fewer steps or a smaller size, or leave `require_realtime` out.",
                code="not_realtime",
                param="require_realtime",
            )
        return found

    def find(self, name: str, tenant: Tenant) -> SessionRun:
        """Return an open session of the tenant. Raises RequestError 404."""
        found = next((run for run in self._runs.of(tenant) if run.film.id == name), None)
        if found is None:
            raise RequestError(f"No open session `{name[:256]}`.", status=404, code="session_not_found")
        return found

    def listed(self, tenant: Tenant) -> list[SessionRun]:
        """Those that are open, oldest first."""
        return self._runs.of(tenant)
