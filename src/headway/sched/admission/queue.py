"""The global queue of a front: most urgent first, then by arrival; one line per model."""

import heapq

import msgspec

from headway.core.errors import InvariantError
from headway.core.ids import ModelId, RequestId
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns

Line = tuple[str, ModelId]


def line_of(request: Request) -> Line:
    """Requests of one line compete for the same replicas."""
    return (type(request).__name__, request.model)


class _Entry(msgspec.Struct, order=True, frozen=True):
    urgency: int
    arrived_ns: Ns
    id: RequestId


class GlobalQueue:
    """Waiting requests. A request that comes back keeps its arrival time, and so its place."""

    def __init__(self) -> None:
        self._lines: dict[Line, list[_Entry]] = {}
        self._waiting: dict[RequestId, Line] = {}
        self._counts: dict[Line, int] = {}
        self._prompts: dict[RequestId, int] = {}
        self._tokens: dict[Line, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._waiting

    def lines(self) -> list[Line]:
        """Lines in which someone waits, in the order of their first request ever."""
        return [line for line, count in self._counts.items() if count]

    def length(self, line: Line) -> int:
        """Requests waiting in one line."""
        return self._counts.get(line, 0)

    def tokens(self, line: Line) -> int:
        """Prompt tokens waiting in one line."""
        return self._tokens.get(line, 0)

    def push(self, request: Request) -> None:
        """Add a request. Raises InvariantError when it already waits."""
        if request.id in self._waiting:
            raise InvariantError(f"request {request.id} waits twice")
        line = line_of(request)
        self._waiting[request.id] = line
        self._counts[line] = self._counts.get(line, 0) + 1
        prompt = 0 if isinstance(request, DiffusionRequest) else request.prompt_tokens
        self._prompts[request.id] = prompt
        self._tokens[line] = self._tokens.get(line, 0) + prompt
        heapq.heappush(self._lines.setdefault(line, []), _Entry(-request.urgency, request.arrived_ns, request.id))

    def head(self, line: Line) -> RequestId | None:
        """Return who is next in a line."""
        heap = self._lines.get(line, [])
        while heap and heap[0].id not in self._waiting:
            heapq.heappop(heap)
        return heap[0].id if heap else None

    def remove(self, request: RequestId) -> bool:
        """Take a request out; False when it does not wait."""
        line = self._waiting.pop(request, None)
        if line is None:
            return False
        self._counts[line] -= 1
        self._tokens[line] -= self._prompts.pop(request)
        heap = self._lines[line]
        if heap and heap[0].id == request:
            heapq.heappop(heap)
        return True
