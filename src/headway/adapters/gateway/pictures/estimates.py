"""What a request for pictures or a video would take, before it is made."""

from collections.abc import Mapping
from typing import Final

from headway.adapters.gateway.caller import Caller
from headway.adapters.gateway.estimates import rounded
from headway.adapters.gateway.job_ports import Usage, ran
from headway.adapters.gateway.parse import parse_body
from headway.adapters.gateway.pictures.bodies import digest, not_served
from headway.adapters.gateway.pictures.checks import Files
from headway.adapters.gateway.pictures.prepare import Asked, PicturePreparer
from headway.adapters.gateway.pictures.schema import EditBody, ImageBody, PictureBody, VariationBody, VideoBody
from headway.adapters.gateway.ports import Serving
from headway.adapters.gateway.prepare import LOADING_RETRY_MS
from headway.adapters.gateway.prices import today
from headway.adapters.gateway.settings import GatewaySettings
from headway.core.errors import CapacityError

KINDS: Final[Mapping[str, type[PictureBody] | type[VideoBody]]] = {
    "/v1/images/generations": ImageBody,
    "/v1/images/edits": EditBody,
    "/v1/images/variations": VariationBody,
    "/v1/videos": VideoBody,
}


class PictureEstimates:
    """Prepares bodies without running them."""

    def __init__(self, serving: Serving, preparer: PicturePreparer, settings: GatewaySettings) -> None:
        self._serving, self._preparer, self._sheet = serving, preparer, settings.sheet
        self._sync_s = settings.limits.sync_s

    def prepare(self, endpoint: str, raw: bytes, caller: Caller) -> Asked:
        """Return what `endpoint` would run. Raises RequestError."""
        kind = KINDS[endpoint]
        body = parse_body(raw, kind, not_served(kind))
        of = digest(endpoint, body, Files())
        if isinstance(body, VideoBody):
            return self._preparer.video(body, Files(), caller, of)
        return self._preparer.image(body, Files(), caller, of)

    def answer(self, endpoint: str, raw: bytes, caller: Caller) -> dict[str, object]:
        """Return time, device time and price. Raises RequestError; CapacityError while nothing is known."""
        request = self.prepare(endpoint, raw, caller).request
        found = self._serving.foresee(request)
        if found is None:
            raise untold(request.model)
        model = ran(request.model, found.degraded)
        is_long = KINDS[endpoint] is not VideoBody and found.work_s > self._sync_s
        images, frames = (request.n, 0) if request.frames == 1 else (0, request.frames)
        used = Usage(request.tenant, model, today(), found.gpu_seconds, images, frames, 1)
        return {
            "model": model,
            "requested_model": request.model,
            "degraded": found.degraded or None,
            "gpu_seconds": rounded(found.gpu_seconds),
            "price_usd": rounded(self._sheet.usd(used)),
            "eta_s": rounded(found.eta_s),
            "memory_bytes": found.memory_bytes,
            "verdict": "use_async" if is_long and found.verdict != "reject" else found.verdict,
            "stage_seconds": {name: rounded(took) for name, took in found.stages.items()},
            "cold_start": found.is_cold,
        }


def untold(model: str) -> CapacityError:
    """What is answered while nobody can tell what work takes."""
    message = f"No replica of {model} has told yet what its work takes."
    return CapacityError(message, status=503, code="no_replica", retry_after_ms=LOADING_RETRY_MS)
