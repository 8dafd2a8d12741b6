"""The global queue of a front: urgency with aging, least service first between tenants, then arrival (SPEC A9, A10).

Age and class stay apart (teradata-labs/loom#376): waiting adds a bounded number of steps to what a class counts as
while the head is chosen, and nobody's urgency changes. A class ages since it was last served: were it the age of each
request, the tenant with the longest queue would win the steps, and with them what fairness takes from it.
"""

import heapq
from typing import Annotated

import msgspec

from headway.core.errors import InvariantError
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns, ns_from_s
from headway.sched.admission.fairness import Service

Line = tuple[str, ModelId]
Class = tuple[int, TenantId]


class QueueParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who goes next of those who wait at the front."""

    aging_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0  # that a class waits unserved count as one step of urgency
    aging_steps_max: Annotated[int, msgspec.Meta(ge=0)] = 3  # that waiting may add; 0: none
    low_share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.05  # of dispatches kept for the least urgent; 0: none
    is_fair: bool = True  # between tenants the one with the least service goes first; false: by arrival alone
    output_weight: Annotated[float, msgspec.Meta(ge=0)] = 2.0  # service of an output token; of a prompt token it is 1


def line_of(request: Request) -> Line:
    """Requests of one line compete for the same replicas."""
    return (type(request).__name__, request.model)


class _Entry(msgspec.Struct, order=True, frozen=True):
    arrived_ns: Ns
    id: RequestId


class _Line:
    """Those who wait for one model, by urgency and tenant."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.classes: dict[Class, list[_Entry]] = {}
        self.of_tenant: dict[TenantId, int] = {}  # requests waiting
        self.served_ns: dict[int, Ns] = {}  # by urgency, of classes that wait
        self.count = 0
        self.tokens = 0
        self.since_low = 0  # dispatches since the least urgent class was served


class GlobalQueue:
    """Waiting requests. A request that comes back keeps its arrival time, and so its place."""

    def __init__(self, params: QueueParams | None = None) -> None:
        self._params = params or QueueParams()
        self._aging_ns = ns_from_s(self._params.aging_s)
        self._low_every = round(1 / self._params.low_share) if self._params.low_share > 0 else 0
        self._lines: dict[Line, _Line] = {}
        self._waiting: dict[RequestId, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._waiting

    def lines(self) -> list[Line]:
        """Lines in which someone waits, in the order of their first request ever."""
        return [name for name, line in self._lines.items() if line.count]

    def length(self, line: Line) -> int:
        """Requests waiting in one line."""
        return self._lines[line].count if line in self._lines else 0

    def tokens(self, line: Line) -> int:
        """Prompt tokens waiting in one line."""
        return self._lines[line].tokens if line in self._lines else 0

    def push(self, request: Request) -> None:
        """Add a request. Raises InvariantError when it already waits."""
        if request.id in self._waiting:
            raise InvariantError(f"request {request.id} waits twice")
        line = self._line(line_of(request))
        self._waiting[request.id] = request
        tenant = request.tenant
        if tenant not in line.of_tenant:
            line.service.joined(tenant, line.of_tenant)
        line.of_tenant[tenant] = line.of_tenant.get(tenant, 0) + 1
        line.count += 1
        line.tokens += _prompt_tokens(request)
        entries = line.classes.setdefault((request.urgency, tenant), [])
        heapq.heappush(entries, _Entry(request.arrived_ns, request.id))

    def _line(self, name: Line) -> _Line:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(Service(self._params.output_weight))
        return line

    def head(self, name: Line, at_ns: Ns) -> RequestId | None:
        """Return who is next in a line. O(pairs of urgency and tenant that wait)."""
        line = self._lines.get(name)
        if line is None or not line.count:
            return None
        if len(line.classes) == 1:
            ((entry, _, _),) = self._heads(line)
            return entry.id
        heads = self._heads(line)
        least, most = min(urgency for _, urgency, _ in heads), max(urgency for _, urgency, _ in heads)
        if least < most and self._low_every and line.since_low + 1 >= self._low_every:
            heads = [head for head in heads if head[1] == least]
        return min(heads, key=lambda head: self._rank(line, head, at_ns))[0].id

    def _heads(self, line: _Line) -> list[tuple[_Entry, int, TenantId]]:
        """The first of every class; classes in which nobody waits any more are dropped."""
        found = []
        for (urgency, tenant), entries in list(line.classes.items()):
            while entries and entries[0].id not in self._waiting:
                heapq.heappop(entries)
            if entries:
                found.append((entries[0], urgency, tenant))
            else:
                del line.classes[urgency, tenant]
        return found

    def _rank(self, line: _Line, head: tuple[_Entry, int, TenantId], at_ns: Ns) -> tuple[int, float, Ns, RequestId]:
        entry, urgency, tenant = head
        since_ns = max(entry.arrived_ns, line.served_ns.get(urgency, 0))
        steps = min(self._params.aging_steps_max, max(0, at_ns - since_ns) // self._aging_ns)
        served = line.service.of(tenant) if self._params.is_fair else 0.0
        return (-(urgency + steps), served, entry.arrived_ns, entry.id)

    def remove(self, request: RequestId) -> bool:
        """Take a request out; False when it does not wait."""
        left = self._waiting.pop(request, None)
        if left is None:
            return False
        line = self._lines[line_of(left)]
        line.count -= 1
        line.tokens -= _prompt_tokens(left)
        line.of_tenant[left.tenant] -= 1
        if not line.of_tenant[left.tenant]:
            del line.of_tenant[left.tenant]
        entries = line.classes[left.urgency, left.tenant]
        if entries and entries[0].id == request:
            heapq.heappop(entries)
            if not entries:
                del line.classes[left.urgency, left.tenant]
        return True

    def dispatch(self, request: Request, output_tokens: int, at_ns: Ns) -> None:
        """Take out a request that is served now, and is taken to answer `output_tokens`."""
        line = self._lines[line_of(request)]
        least = min(urgency for urgency, _ in line.classes)
        line.since_low = 0 if request.urgency == least else line.since_low + 1
        self.remove(request.id)
        line.served_ns[request.urgency] = at_ns
        if len(line.served_ns) > len(line.classes) + 1:  # clients choose the numbers: only those that wait are kept
            waiting = {urgency for urgency, _ in line.classes}
            line.served_ns = {urgency: ns for urgency, ns in line.served_ns.items() if urgency in waiting}
        line.service.dispatched(request, output_tokens)

    def ended(self, request: Request, output_tokens: int) -> None:
        """A request that was served is over, after `output_tokens`."""
        line = self._lines.get(line_of(request))
        if line is not None:
            line.service.ended(request.id, output_tokens)

    def service(self, name: Line, tenant: TenantId) -> float:
        """Weighted tokens that a tenant was given in a line, lifts included."""
        return self._line(name).service.of(tenant)


def _prompt_tokens(request: Request) -> int:
    return 0 if isinstance(request, DiffusionRequest) else request.prompt_tokens
