"""Fairness between tenants that wait for the same replicas: weighted service counters (SPEC A10).

Virtual token counters (Sheng et al., VTC, OSDI'24, algorithm 2): the tenant with the least service goes first; one that
comes back is lifted to the least of those who wait, so that idleness earns no credit. Here the whole request is charged
when it is dispatched, its output as predicted, and the difference when it ends: nothing is paid per token.
"""

from collections.abc import Iterable

import msgspec

from headway.core.ids import RequestId, TenantId
from headway.core.request import DiffusionRequest, Request


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What one dispatch cost its tenant."""

    tenant: TenantId
    weight: int
    output_tokens: int


class Service:
    """Weighted tokens that each tenant was given."""

    def __init__(self, output_weight: float) -> None:
        self._output_weight = output_weight
        self._served: dict[TenantId, float] = {}
        self._charges: dict[RequestId, Charge] = {}
        self._last: TenantId | None = None

    def of(self, tenant: TenantId) -> float:
        """Its service so far, over its weight."""
        return self._served.get(tenant, 0.0)

    def joined(self, tenant: TenantId, waiting: Iterable[TenantId]) -> None:
        """A tenant that had nothing waiting has again; `waiting`: the others that have."""
        levels = [self.of(other) for other in waiting if other != tenant]
        if not levels and self._last is not None:
            levels = [self.of(self._last)]
        self._served[tenant] = max([self.of(tenant), *([min(levels)] if levels else [])])

    def dispatched(self, request: Request, output_tokens: int) -> None:
        """A request is served, and taken to answer `output_tokens`. A second dispatch of it costs nothing more."""
        self._last = request.tenant
        if request.id in self._charges or isinstance(request, DiffusionRequest):
            return
        charge = self._charges[request.id] = Charge(request.tenant, request.tenant_weight, output_tokens)
        self._add(charge, request.prompt_tokens + self._output_weight * output_tokens)

    def ended(self, request: RequestId, output_tokens: int) -> None:
        """It is over: what it was charged too much comes back, what it took more is added."""
        charge = self._charges.pop(request, None)
        if charge is not None:
            self._add(charge, self._output_weight * (output_tokens - charge.output_tokens))

    def _add(self, charge: Charge, tokens: float) -> None:
        self._served[charge.tenant] = self.of(charge.tenant) + tokens / charge.weight
