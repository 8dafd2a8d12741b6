"""What the requests of a load are promised, and measured against."""

from typing import Annotated

import msgspec

from headway.core.request import Slo
from headway.core.units import NS_PER_MS, Ns

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The SLO that goodput counts against; None: no promise."""

    ttft_ms: Positive | None = None  # to the first token; no promise to a picture, which has none
    tpot_ms: Positive | None = None  # per output token after the first, of text as well
    e2e_ms: Positive | None = None  # to the end

    def slo(self, sent_ns: Ns, *, is_text: bool = True) -> Slo:
        """Return the deadlines of a request that is sent at a time."""

        def due(ms: float | None) -> Ns | None:
            return None if ms is None else sent_ns + round(ms * NS_PER_MS)

        if not is_text:
            return Slo(e2e_deadline_ns=due(self.e2e_ms))
        tpot_ns = None if self.tpot_ms is None else round(self.tpot_ms * NS_PER_MS)
        return Slo(due(self.ttft_ms), tpot_ns, due(self.e2e_ms))
