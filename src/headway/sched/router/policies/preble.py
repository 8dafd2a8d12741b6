"""Preble's E2 (ICLR'25): exploit a prefix that is most of the prompt, else explore the replica with the least cost."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from statistics import median
from typing import Annotated, ClassVar, Final

import msgspec

from headway.core.ids import NodeId, RequestId
from headway.core.request import DiffusionRequest, Request
from headway.core.units import Ns, ns_from_s, s_from_ns
from headway.sched.router.policies._terms import chosen_first, hashes_of, prompt_of, rates
from headway.sched.router.protocol import Dispatched, Ended, FirstToken, Learned, Left, ReplicaView, Scored

_TPOTS: Final = 200  # of one replica, whose median counts
_TTFTS: Final = 64  # of one prefix at one replica


class _Prefix(msgspec.Struct):
    """What one exploring request computed anew, and all requests that exploited it since."""

    tokens: int  # that the first one computed
    output_tokens: int  # to expect while no answer has ended
    blocks: list[bytes]
    replicas: dict[NodeId, None]
    active: dict[NodeId, int]
    ttfts: dict[NodeId, deque[tuple[Ns, Ns]]]
    count: int = 0  # requests in the window, and
    prompt_tokens: int = 0  # theirs, and
    hit_tokens: int = 0  # of these cached
    answers: int = 0
    answer_tokens: int = 0
    share: dict[NodeId, tuple[int, int]] = {}  # what it adds to the loads of its replicas

    def recomputed(self) -> float:
        """Tokens that the window's requests computed of it: miss rate x count x tokens."""
        return (1 - self.hit_tokens / self.prompt_tokens) * self.count * self.tokens if self.prompt_tokens else 0.0

    def shares(self) -> dict[NodeId, tuple[int, int]]:
        """(prefill, decode) tokens per replica."""
        expected = self.answer_tokens / self.answers if self.answers else self.output_tokens
        prefill = round(self.recomputed() / len(self.replicas)) if self.replicas else 0
        return {node: (prefill, round(self.active.get(node, 0) * expected)) for node in self.replicas}

    def is_overloaded(self, node: NodeId, at_ns: Ns, window_ns: Ns) -> bool:
        """True when the mean time to first token there doubled from the first to the second half of the window."""
        known = [(when, ttft) for when, ttft in self.ttfts.get(node, ()) if when >= at_ns - window_ns]
        early = [ttft for when, ttft in known if when < at_ns - window_ns // 2]
        late = [ttft for when, ttft in known if when >= at_ns - window_ns // 2]
        return bool(early and late) and sum(late) * len(early) >= 2 * sum(early) * len(late)


class _Window(msgspec.Struct, frozen=True):
    """One request of the window."""

    at_ns: Ns
    prefix: int  # its number
    prompt_tokens: int
    hit_tokens: int


class Preble:
    """Exploit where cached > uncached: the least loaded replica of the prefix. Else explore: argmin L + P + M.

    L = sum over the replica's prefixes in the window: miss rate x count x t_prefill / replicas of the prefix + active x
    mean output x median TPOT; P = t_prefill of what it does not hold; M = t_prefill of what would be evicted for it. A
    replica with more than `imbalance` times the least load shares the prefix with the least loaded one, if what moves
    does not turn the imbalance round; a replica's only prefix only once its TTFT has doubled. Published in
    WukLab/preble (global_scheduler_with_time.py). Here t_prefill is tokens over the learned rate instead of a fitted
    curve, the tree is over prefix blocks, and a prefix that was shared keeps its old replica as a candidate.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"prefill_tokens_per_s", "kv_tokens_total", "block_hashes"})
    sees: ClassVar[str] = "its own three minutes of prefixes, hits, outputs and token times, and learned prefill rates"
    good_at: ClassVar[str] = "long shared prompts: few prefixes, placed where three minutes of load leave room"
    blind_spot: ClassVar[str] = "the present: a burst counts like minutes ago, and other fronts' requests not at all"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Published values."""

        window_s: Annotated[float, msgspec.Meta(gt=0)] = 180.0  # that loads are summed over
        imbalance: Annotated[float, msgspec.Meta(ge=1)] = 1.5  # most over least load beyond which a prefix is shared
        tpot_s: Annotated[float, msgspec.Meta(gt=0)] = 0.15  # of a replica that has answered nothing yet
        prefixes_max: Annotated[int, msgspec.Meta(ge=1)] = 20_000  # the least recently used go

    def __init__(self, params: Params) -> None:
        self._params = params
        self._window_ns = ns_from_s(params.window_s)
        self._prefixes: OrderedDict[int, _Prefix] = OrderedDict()  # least recently used first
        self._of_block: dict[bytes, int] = {}
        self._window: deque[_Window] = deque()
        self._open: dict[tuple[RequestId, NodeId], tuple[int, Ns | None]] = {}  # prefix, time of the first token
        self._loads: dict[NodeId, tuple[int, int]] = {}  # sums of the prefixes' shares
        self._held: dict[NodeId, int] = {}  # tokens of its prefixes
        self._tpots: dict[NodeId, deque[float]] = {}
        self._tpot: dict[NodeId, float] = {}  # medians
        self._next = 0

    def rank(self, request: Request, replicas: Sequence[ReplicaView], at_ns: Ns) -> list[Scored]:
        """Put the chosen replica first, the others by cost."""
        if not replicas:
            return []
        rate, (number, cached) = rates(replicas), self._match(request)
        prefix = None if number is None else self._prefixes[number]
        loads = {r.id: self._seconds(r.id, self._loads.get(r.id, (0, 0)), rate[r.id]) for r in replicas}
        homes = [r.id for r in replicas if prefix is not None and r.id in prefix.replicas]
        if prefix is not None and homes and cached > prompt_of(request) - cached:
            home = min(homes, key=lambda node: (loads[node], node))
            chosen = self._shared(prefix, home, loads, rate[home], at_ns)
            kind = "exploit" if chosen == home else "shared"
            scored = [Scored(r.id, loads[r.id], f"{kind}; load {loads[r.id]:.3f} s") for r in replicas]
            return chosen_first(chosen, scored)
        scored = []
        for r in replicas:
            new = prompt_of(request) - (cached if r.id in homes else 0)
            own_s, evicted_s = new / rate[r.id], self._evicted(r, new) / rate[r.id]
            reason = f"explore; load {loads[r.id]:.3f} + prefill {own_s:.3f} + evicted {evicted_s:.3f} s"
            scored.append(Scored(r.id, loads[r.id] + own_s + evicted_s, reason))
        return chosen_first(min(scored, key=lambda item: (item.score, item.replica)).replica, scored)

    def _match(self, request: Request) -> tuple[int | None, int]:
        """Return the prefix that the deepest known block belongs to, and the tokens up to there."""
        number, depth = None, 0
        for digest in hashes_of(request):
            found = self._of_block.get(digest)
            if found is None:
                break
            number, depth = found, depth + 1
        if number is None or isinstance(request, DiffusionRequest):
            return None, 0
        return number, min(depth * request.block_tokens, request.prompt_tokens)

    def _seconds(self, node: NodeId, tokens: tuple[int, int], rate: float) -> float:
        return tokens[0] / rate + tokens[1] * self._tpot.get(node, self._params.tpot_s)

    def _shared(self, prefix: _Prefix, home: NodeId, loads: dict[NodeId, float], rate: float, at_ns: Ns) -> NodeId:
        """Return who takes the request of a prefix whose lightest replica is `home`."""
        lightest = min(loads, key=lambda node: (loads[node], node))
        cost = self._seconds(home, prefix.share.get(home, (0, 0)), rate)
        if lightest in prefix.replicas or loads[home] <= self._params.imbalance * loads[lightest]:
            return home
        if cost >= loads[home]:  # its only one
            cost /= 2
            if not prefix.is_overloaded(home, at_ns, self._window_ns):
                return home
        return lightest if loads[home] >= loads[lightest] + cost else home

    def _evicted(self, replica: ReplicaView, new: int) -> float:
        """Tokens that would be computed again if the replica's oldest prefixes made room; 0 while it has room."""
        if not replica.kv_tokens_total:
            return 0.0
        again, freed = 0.0, 0
        if self._held.get(replica.id, 0) + new > replica.kv_tokens_total:
            for prefix in self._prefixes.values():
                if freed >= new:
                    break
                if replica.id in prefix.replicas:
                    freed += prefix.tokens
                    again += prefix.recomputed()
        return again

    def observe(self, event: Learned) -> None:
        """Keep the window, the prefixes and the token times."""
        match event:
            case Dispatched():
                self._begin(event)
            case FirstToken():
                self._first(event)
            case Ended():
                self._end(event)
            case Left():
                self._left(event.replica)

    def _begin(self, event: Dispatched) -> None:
        request, node = event.request, event.replica
        self._close(request.id, node)
        number, cached = self._match(request)
        length = prompt_of(request)
        if number is None or cached <= length - cached:
            self._next += 1
            number = self._next
            self._prefixes[number] = _Prefix(length - cached, 0, [], {}, {}, {})
        prefix = self._prefixes[number]
        for digest in hashes_of(request):
            if digest not in self._of_block:
                self._of_block[digest] = number
                prefix.blocks.append(digest)
        self._prefixes.move_to_end(number)
        prefix.output_tokens = 0 if isinstance(request, DiffusionRequest) else request.max_tokens
        if node not in prefix.replicas:
            prefix.replicas[node] = None
            self._held[node] = self._held.get(node, 0) + prefix.tokens
        self._open[request.id, node] = (number, None)
        prefix.active[node] = prefix.active.get(node, 0) + 1
        self._window.append(_Window(event.at_ns, number, length, cached))
        self._count(self._window[-1], 1)
        while self._window[0].at_ns < event.at_ns - self._window_ns:
            self._count(self._window.popleft(), -1)
        while len(self._prefixes) > self._params.prefixes_max:
            self._drop(next(iter(self._prefixes)))

    def _count(self, item: _Window, sign: int) -> None:
        prefix = self._prefixes.get(item.prefix)
        if prefix is not None:
            prefix.count += sign
            prefix.prompt_tokens += sign * item.prompt_tokens
            prefix.hit_tokens += sign * item.hit_tokens
            self._settle(item.prefix)

    def _settle(self, number: int) -> None:
        """Bring the loads up to date with a prefix that changed; drop it when nothing of it is left."""
        prefix = self._prefixes[number]
        if not prefix.count and not prefix.active:
            self._drop(number)
            return
        shares = prefix.shares()
        for node, (prefill, decode) in shares.items():
            before, load = prefix.share.get(node, (0, 0)), self._loads.get(node, (0, 0))
            self._loads[node] = (load[0] + prefill - before[0], load[1] + decode - before[1])
        prefix.share = shares

    def _drop(self, number: int) -> None:
        prefix = self._prefixes.pop(number)
        for node, (prefill, decode) in prefix.share.items():
            load = self._loads[node]
            self._loads[node] = (load[0] - prefill, load[1] - decode)
        for node in prefix.replicas:
            self._held[node] -= prefix.tokens
        for digest in prefix.blocks:
            del self._of_block[digest]

    def _first(self, event: FirstToken) -> None:
        number, _first_ns = self._open.get((event.request, event.replica), (None, None))
        prefix = None if number is None else self._prefixes.get(number)
        if number is not None and prefix is not None:
            self._open[event.request, event.replica] = (number, event.at_ns)
            known = prefix.ttfts.setdefault(event.replica, deque(maxlen=_TTFTS))
            known.append((event.at_ns, event.since_dispatch_ns))

    def _end(self, event: Ended) -> None:
        number, first_ns = self._open.get((event.request, event.replica), (None, None))
        prefix = None if number is None else self._prefixes.get(number)
        if event.output_tokens > 1 and first_ns is not None:
            known = self._tpots.setdefault(event.replica, deque(maxlen=_TPOTS))
            known.append(s_from_ns(event.at_ns - first_ns) / (event.output_tokens - 1))
            self._tpot[event.replica] = median(known)
        if event.output_tokens > 1 and prefix is not None:
            prefix.answers += 1
            prefix.answer_tokens += event.output_tokens
        self._close(event.request, event.replica)

    def _close(self, request: RequestId, node: NodeId) -> None:
        number, _first_ns = self._open.pop((request, node), (None, None))
        prefix = None if number is None else self._prefixes.get(number)
        if number is not None and prefix is not None:
            prefix.active[node] -= 1
            if not prefix.active[node]:
                del prefix.active[node]
            self._settle(number)

    def _left(self, node: NodeId) -> None:
        for key in [key for key in self._open if key[1] == node]:
            del self._open[key]
        for number, prefix in list(self._prefixes.items()):
            prefix.share.pop(node, None)
            prefix.replicas.pop(node, None)
            prefix.active.pop(node, None)
            prefix.ttfts.pop(node, None)
            self._settle(number)
        for by_node in (self._loads, self._held, self._tpots, self._tpot):
            by_node.pop(node, None)
