"""Which replica holds which beginning of a prompt: guessed from what was dispatched, corrected by what engines tell.

One map from chained block hash to its holders, so that one walk of a request's blocks answers for every replica. Model,
LoRA, salt and media are in the root of the chain (core.blockhash). A holder has two bits: told by the engine's events,
or guessed from a dispatch. A guess is withdrawn when the dispatch ends without a first token, and gives way to what the
engine tells where it does tell. Bounded in bytes; the least recently used prefix goes, its leaves before its parents.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from headway.core.blockhash import known_stride
from headway.core.ids import NodeId, RequestId
from headway.core.reports import KvEvents, ReplicaReport
from headway.core.request import DiffusionRequest, Request
from headway.sched.router.prefix_slots import AGE_BITS, Holder, Sent, Slots

# Measured with tracemalloc over sizes and churn: 202 to 284 bytes an entry at rest, 327 while the table grows; malloc
# rounds key, value and list node up by another 24.
ENTRY_BYTES: Final = 384
DIGIT_BITS: Final = 30  # of a Python integer; every further digit costs 4 bytes an entry
AGE_MASK: Final = (1 << AGE_BITS) - 1
AGES: Final = 16  # per turnover of the whole map; a chain moves at most once per age
SETTLED_MAX: Final = 256  # answered dispatches of one replica whose guesses wait for its next report


class IndexParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much the gateway remembers of the prefixes that replicas hold."""

    bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 64 << 20  # of memory, for all replicas; about 384 per 64 tokens


class PrefixIndex:
    """Holders of prefixes, least recently used first.

    The value of an entry: its age, then two bits per replica's slot, told and guessed. A probe of a large map misses
    the processor's caches four times (0.4 us), so nothing here touches a whole chain that is known already: the walk
    bisects, and a chain moves to the young end once per age, not once per request.
    """

    def __init__(self, params: IndexParams) -> None:
        self._bytes_max = params.bytes_max
        self._entries: OrderedDict[bytes, int] = OrderedDict()
        self._nodes: dict[NodeId, Holder] = {}
        self._slots = Slots()
        self._moves = 0  # entries moved to the young end
        self._asked: Request | None = None  # the last walk: forecast, enqueue and dispatch ask for the same
        self._depths: dict[NodeId, int] = {}  # its answer in entries
        self._hits: dict[NodeId, int] = {}  # and in tokens

    @property
    def bytes_used(self) -> int:
        """Memory of all entries, at most."""
        return len(self._entries) * self._entry_bytes

    @property
    def pending(self) -> int:
        """Dispatches that had no first token yet."""
        return sum(len(node.sent) for node in self._nodes.values())

    @property
    def _entry_bytes(self) -> int:
        return ENTRY_BYTES + 4 * ((AGE_BITS + 2 * self._slots.count) // DIGIT_BITS)

    def hits(self, request: Request, node: NodeId) -> int:
        """Prompt tokens of the request that are predicted to be cached at `node`."""
        return self.hits_all(request).get(node, 0)

    def hits_all(self, request: Request) -> Mapping[NodeId, int]:
        """Prompt tokens of the request that are predicted to be cached, by replica that holds any.

        O(log(blocks)) for each depth at which a replica's knowledge ends.
        """
        if request is not self._asked:
            self._depths = depths = self._walk(_keys(request))
            self._hits = {}
            if depths and not isinstance(request, DiffusionRequest):
                # Engines hit whole blocks and leave a token to compute.
                most = (request.prompt_tokens - 1) // request.block_tokens * request.block_tokens
                width = _width(request)
                self._hits = {node: min(depth * width, most) for node, depth in depths.items()}
            self._asked = request
        return self._hits

    def _walk(self, keys: Sequence[bytes]) -> dict[NodeId, int]:
        """Who holds a block holds those before it: engines and this map drop leaves first. So bisect."""
        depths: dict[NodeId, int] = {}
        get = self._entries.get
        value = get(keys[0], 0) >> AGE_BITS if keys else 0
        held = (value | value >> 1) & self._slots.live
        if not held:
            return depths
        high = len(keys) - 1
        value = get(keys[high], 0) >> AGE_BITS
        kept = (value | value >> 1) & held
        self._note(depths, kept, high + 1)
        spans = [(0, held, high, kept)]
        while spans:
            low, held, high, kept = spans.pop()
            while held != kept and high - low > 1:
                middle = (low + high) // 2
                value = get(keys[middle], 0) >> AGE_BITS
                at = (value | value >> 1) & held
                if at == held:
                    low = middle
                    continue
                if at & ~kept:
                    spans.append((middle, at, high, kept & at))
                high, kept = middle, at
            self._note(depths, held ^ kept, high)
        return depths

    def _note(self, depths: dict[NodeId, int], bits: int, depth: int) -> None:
        if bits:
            for slot, node in self._slots.owners.items():
                if bits >> 2 * slot & 1:
                    depths[node] = max(depth, depths.get(node, 0))

    def dispatched(self, request: Request, node: NodeId) -> None:
        """The request goes to `node`, and its prompt is taken to be cached there until the dispatch proves idle."""
        keys = _keys(request)
        if not keys:
            return
        self.hits_all(request)
        holder = self._holder(node)
        self._make_room(holder, node)
        guessed = self._guess(keys, holder.slot, self._depths.get(node, 0))
        holder.filled += len(guessed) * _width(request)
        holder.sent[request.id] = Sent(holder.slot, guessed, holder.withdrawals)

    def _make_room(self, holder: Holder, node: NodeId) -> None:
        """A replica that does not tell what it evicts: what was used least lately, beyond its capacity.

        Two generations of half the capacity stand in for its LRU; a chain that is used again moves to the young one.
        """
        if holder.is_exact or not holder.capacity or 2 * holder.filled <= holder.capacity:
            return
        if holder.old_slot is not None:
            self._slots.retire(holder.old_slot)
        holder.old_slot, holder.filled = holder.slot, 0
        holder.slot = self._take_slot(node)
        self._asked = None

    def _guess(self, keys: Sequence[bytes], slot: int, depth: int) -> tuple[bytes, ...]:
        """Move the chain to the young end, deepest first, so that a leaf goes before its parents.

        The first `depth` entries are known; they stay where they are when they are of this age. Returns what is new.
        """
        entries, guess, either = self._entries, 2 << 2 * slot + AGE_BITS, 3 << 2 * slot + AGE_BITS
        age = self._age
        deepest = entries.get(keys[depth - 1], 0) if depth else 0
        if deepest & either and deepest & AGE_MASK == age:
            keys = keys[depth:]
        guessed = []
        for key in reversed(keys):
            value = entries.get(key)
            if value is None:
                entries[key] = guess | age
                guessed.append(key)
                continue
            if not value & either:
                guessed.append(key)
                value |= guess
            entries[key] = value & ~AGE_MASK | age
            entries.move_to_end(key)
        if keys:
            self._moves += len(keys)
            self._changed()
        return tuple(guessed)

    @property
    def _age(self) -> int:
        return self._moves * AGES // max(AGES, self._entries_max) & AGE_MASK

    def begun(self, request: Request, node: NodeId) -> None:
        """Its first token came: the prompt was computed there, and nowhere else (GAIE#2391)."""
        holder = self._nodes.get(node)
        sent = None if holder is None else holder.sent.pop(request.id, None)
        if holder is None or sent is None or sent.slot != holder.slot:
            return
        if holder.is_exact:
            holder.settled.append(sent.guessed)
            if len(holder.settled) > SETTLED_MAX:  # it answers and does not report
                self._clear(holder.settled.pop(0), 2 << 2 * holder.slot + AGE_BITS)
        elif holder.withdrawals != sent.withdrawals:
            self._guess(_keys(request), holder.slot, 0)  # another dispatch may have withdrawn what it shared

    def ended(self, request: RequestId, node: NodeId) -> None:
        """The dispatch is over. Without a first token nothing speaks for its prompt being cached."""
        holder = self._nodes.get(node)
        sent = None if holder is None else holder.sent.pop(request, None)
        if holder is not None and sent is not None and sent.slot in (holder.slot, holder.old_slot) and sent.guessed:
            holder.withdrawals += 1
            self._clear(sent.guessed, 2 << 2 * sent.slot + AGE_BITS)

    def heard(self, report: ReplicaReport) -> None:
        """Correct the guesses by what the replica's engine tells of its cache, or by how much it can hold."""
        events = report.kv_events
        if events is None or report.source != "engine":
            if report.kv_blocks_total * report.block_size:
                self._holder(report.replica).capacity = report.kv_blocks_total * report.block_size
            return
        holder = self._holder(report.replica)
        if events.is_reset:
            self._retire(holder)
            holder.slot = self._take_slot(report.replica)
            holder.is_exact = True
            holder.settled.clear()
        self._tell(events, holder)

    def _tell(self, events: KvEvents, holder: Holder) -> None:
        entries, told = self._entries, 1 << 2 * holder.slot + AGE_BITS
        guess, old = told << 1, self._age - 1 & AGE_MASK
        self._clear(events.removed, told | guess)
        for key in reversed(events.stored):  # parents come first, and are to stay longest
            # Parents may have been told before: as of an older age, the next dispatch moves the whole chain.
            entries[key] = (entries.get(key, old) | told) & ~guess
        self._moves += len(events.stored)
        for guessed in holder.settled:
            self._clear(guessed, guess)
        holder.settled.clear()
        self._changed()

    def left(self, node: NodeId) -> None:
        """The replica is gone, and its cache."""
        holder = self._nodes.pop(node, None)
        if holder is not None:
            self._retire(holder)
            self._changed()

    def _clear(self, keys: Iterable[bytes], bits: int) -> None:
        entries = self._entries
        for key in keys:
            value = entries.get(key, 0)
            if value & bits:
                left = value & ~bits
                if left >> AGE_BITS:
                    entries[key] = left
                else:
                    del entries[key]
        self._asked = None

    @property
    def _entries_max(self) -> int:
        return self._bytes_max // self._entry_bytes

    def _changed(self) -> None:
        self._asked = None
        most = self._entries_max
        while len(self._entries) > most:
            self._entries.popitem(last=False)

    def _holder(self, node: NodeId) -> Holder:
        holder = self._nodes.get(node)
        if holder is None:
            holder = self._nodes[node] = Holder(self._take_slot(node))
        return holder

    def _retire(self, holder: Holder) -> None:
        self._slots.retire(holder.slot)
        if holder.old_slot is not None:
            self._slots.retire(holder.old_slot)
            holder.old_slot = None

    def _take_slot(self, node: NodeId) -> int:
        if self._slots.is_sweep_due:  # O(entries), once for several slots
            gone = self._slots.swept()
            self._clear([key for key, value in self._entries.items() if value & gone], gone)
        return self._slots.take(node)


def _width(request: Request) -> int:
    """Tokens that an entry stands for."""
    tokens = 0 if isinstance(request, DiffusionRequest) else request.block_tokens
    return tokens * known_stride(tokens) if tokens else 0


def _keys(request: Request) -> Sequence[bytes]:
    """The hashes that are known of a request: every stride-th."""
    if isinstance(request, DiffusionRequest) or not request.block_tokens:
        return ()
    stride = known_stride(request.block_tokens)
    return request.block_hashes[stride - 1 :: stride]
