"""The scheduler that visits everybody at every step: the oracle of SPEC B9.

Same decisions as the LLM machine, stated plainly: counts are fields that every step changes, limits and block needs are
looked for in every sequence, orders are sorts, chunk sizes are counted up from zero. It shares the block pool, the
belief and the request types, and nothing else.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headway.core.blockhash import chain
from headway.core.events import StepDone
from headway.core.ports import ModelLimits
from headway.core.request import FinishReason, LlmRequest
from headway.cost.llm import StepCost, pairs
from headway.sched.llm.params import LlmParams
from headway.sched.llm.pool import BROKEN, BlockPool

Row = tuple[int, int, int, tuple[int, ...]]
UNIT = 720_720


@dataclass(eq=False)
class One:
    """A sequence; every number is current after every step."""

    id: int
    request: LlmRequest
    limit: int
    outputs: int
    raw: bytes
    hashes: list[bytes]
    state: str = "waiting"
    table: list[int] = field(default_factory=list)
    computed: int = 0
    preemptions: int = 0
    reserve: int = 0
    cached: int = 0
    parent: int | bytes = b""
    slots: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)  # steps that sampled for it here
    ready_after: int = 0
    entry: int = 0  # order of becoming a decode; a break that costs no step keeps it
    allowance: int | None = None

    @property
    def target(self) -> int:
        return len(self.request.prompt) + self.outputs

    @property
    def last(self) -> int:
        return self.samples[-1] if self.samples else 0


class Queue(list[One]):
    """A list that counts its changes."""

    changes = 0

    def append(self, seq: One) -> None:
        self.changes += 1
        super().append(seq)

    def remove(self, seq: One) -> None:
        self.changes += 1
        super().remove(seq)


class NaiveScheduler:
    """Oracle for one configuration. `changes` counts what it did to sequences, to compare effects."""

    def __init__(self, params: LlmParams, limits: ModelLimits, belief: StepCost) -> None:
        self.params, self.limits, self.belief = params, limits, belief
        self.size = limits.block_size
        self.pool = BlockPool(limits.kv_blocks, self.size)
        self.slots = BlockPool(limits.host_slots if params.swap else 0)
        self.seqs: dict[int, One] = {}
        self.last_seq = self.step = self.done = self.entries = self.visits = 0
        self.waiting = Queue()
        self.running: list[One] = []  # in order of admission
        self.decoding: list[One] = []  # in order of joining
        self.stalled: list[One] = []
        self.skips: dict[One, int] = {}
        self.served: dict[str, int] = {}
        self.idle_at: dict[str, int] = {}
        self.swapped: list[One] = []
        self.last_kind = ""
        self.calm = True
        self.now = 0
        self.blocked: tuple[int, int, int, int] | None = None
        self.order, self.order_params = params.order.type, params.order.params

    def _worst(self, seq: One) -> int:
        return self._blocks(len(seq.request.prompt) + seq.limit - 1)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.size)

    # Orders

    def _number(self, name: str, default: int) -> int:
        value = self.order_params.get(name, default)
        assert isinstance(value, int)
        return value

    def wait_key(self, seq: One) -> tuple[int, ...]:
        """Who is next, computed from scratch."""
        r = seq.request
        again = 0 if seq.preemptions else 1
        if self.order == "priority":
            age = self._number("age_ms", 30_000) * 1_000_000
            return (r.arrived_ns // age - r.urgency, again, r.arrived_ns, seq.id)
        if self.order == "shortest_predicted":
            tokens = r.output_tokens_predicted
            likely = min(self._number("unknown_tokens", 256) if tokens is None else tokens, r.sampling.max_tokens)
            left = max(likely - seq.outputs, 1)
            work = self.belief.prefill_ns(seq.computed, seq.target - seq.computed)
            work += left * self.belief.step_ns(1, seq.target)
            return (again, r.arrived_ns + self._number("stretch", 10) * work, seq.id)
        if self.order == "shortest_remaining":
            return (self._remaining(seq), seq.id)
        if self.order == "least_slack":
            slo = r.slo
            due = slo.ttft_deadline_ns
            if due is None:
                due = r.arrived_ns + self._number("default_ms", 60_000) * 1_000_000
            if seq.outputs and slo.tpot_ns is not None:
                due += seq.outputs * slo.tpot_ns
            elif slo.e2e_deadline_ns is not None and (seq.outputs or slo.ttft_deadline_ns is None):
                due = slo.e2e_deadline_ns
            return (again, due - self.belief.prefill_ns(seq.computed, seq.target - seq.computed), seq.id)
        return (again, r.arrived_ns, seq.id)

    def head(self, step: int) -> One | None:
        """The next to admit."""
        if not self.waiting:
            return None
        if self.order == "fair":
            names = {seq.request.tenant for seq in self.waiting}
            least = min(names, key=lambda name: (self.served[name], name))
            return min((s for s in self.waiting if s.request.tenant == least), key=self.wait_key)
        oldest = min(self.waiting, key=self.wait_key)
        if self.order == "lpm":
            if len(self.waiting) > self._number("queue_max", 64):
                return oldest
            if self.skips.get(oldest, 0) >= self._number("skips_max", 16):
                return oldest

            def scan(seq: One) -> tuple[int, ...]:
                hit = seq.computed if seq.slots else len(self._hits(seq, step)) * self.size
                again, *rest = self.wait_key(seq)
                return (again, -hit, *rest)

            return min(self.waiting, key=scan)
        return oldest

    def victim(self, head: One | None = None) -> One | None:
        """Least urgent, of those the 8 latest but the earliest of them, of those the cheapest to redo."""
        cap = self.params.preemptions_max
        open_ = [s for s in self.running if s.preemptions < cap and s.state != "frozen"]
        if not open_:
            return None
        if self.order == "fair":
            most = max({s.request.tenant for s in open_}, key=lambda name: (self.served[name], name))
            open_ = [s for s in open_ if s.request.tenant == most]
        lowest = min(s.request.urgency for s in open_)
        open_ = [s for s in open_ if s.request.urgency == lowest]
        open_.sort(key=lambda s: (-s.request.arrived_ns, -s.id))
        window = [s for s in open_[:8] if head is None or self.outranks(head, s)]
        if not window:
            return None
        if len(window) > 1:
            window = window[:-1]
        return min(window, key=lambda s: self.redo(s)[0])

    def redo(self, seq: One) -> tuple[int, bool]:
        """Cost of preempting, and whether by swap."""
        again = self.belief.recompute_ns(seq.computed)
        if self.params.swap and seq.state in ("decode", "stalled"):
            blocks = self._blocks(seq.computed)
            if self.belief.swap_ns(blocks) < again and blocks <= self.slots.available:
                return self.belief.swap_ns(blocks), True
        return again, False

    def outranks(self, head: One, victim: One) -> bool:
        """May `head` displace `victim`."""
        if self.order != "priority":
            return False
        gap = head.request.urgency - victim.request.urgency
        return gap >= self._number("min_gap", 1) and self.wait_key(head)[0] < self.wait_key(victim)[0]

    def overtakes(self, head: One, partial: One) -> bool:
        """Is `head` computed before `partial` goes on."""
        if self.order == "shortest_remaining":
            return self._remaining(head) < self._remaining(partial)
        return self.outranks(head, partial)

    def _remaining(self, seq: One) -> int:
        """Predicted work to the last token, and what waiting is worth."""
        tokens = seq.request.output_tokens_predicted
        likely = self._number("unknown_tokens", 256) if tokens is None else tokens
        left = max(min(likely, seq.request.sampling.max_tokens) - seq.outputs, 1)
        work = self.belief.prefill_ns(seq.computed, seq.target - seq.computed)
        work += left * self.belief.step_ns(1, seq.target)
        return seq.request.arrived_ns + self._number("stretch", 10) * work

    # Tenants

    def _active(self, name: str) -> bool:
        return any(s.request.tenant == name for s in self.waiting) or any(
            s.request.tenant == name and s.state != "frozen" for s in self.running
        )

    def _tenants(self, change: Callable[[], None], seq: One) -> None:
        """Make a change to waiting or running; lift a tenant that comes back from idle."""
        name = seq.request.tenant
        before = self._active(name)
        others = {s.request.tenant for s in self.waiting}
        others |= {s.request.tenant for s in self.running if s.state != "frozen"}
        if name not in self.served:
            self.served[name] = 0
        if not before and self.idle_at.get(name, -1) < self.step + 1 and others:
            self.served[name] = max(self.served[name], min(self.served[other] for other in others))
        change()
        if not self._active(name):
            self.idle_at[name] = self.step + 1

    # Events

    def add(self, request: LlmRequest, emitted: tuple[int, ...], at_ns: int) -> int:
        """Queue a request that the machine accepted too."""
        self.last_seq += 1
        limit = min(request.sampling.max_tokens, self.limits.max_model_len - len(request.prompt))
        cache = self.params.prefix_cache and bool(request.cache_root)
        raw = array("I", request.prompt).tobytes() if cache else b""
        hashes = list(request.block_hashes) if cache else []
        seq = One(self.last_seq, request, limit, len(emitted), raw, hashes, parent=request.cache_root)
        self.seqs[seq.id] = seq
        self._tenants(lambda: self.waiting.append(seq), seq)
        return seq.id

    def await_input(self, number: int) -> None:
        seq = self.seqs[number]
        self._tenants(lambda: self.waiting.remove(seq), seq)
        self.skips.pop(seq, None)
        seq.state = "held"

    def ready(self, number: int) -> None:
        seq = self.seqs.get(number)
        if seq is not None and seq.state == "held":
            seq.state = "waiting"
            self._tenants(lambda: self.waiting.append(seq), seq)

    def reset_prefix_cache(self) -> None:
        self.pool.forget_cached()

    def freeze(self, number: int) -> None:
        seq = self.seqs[number]
        if seq.state not in ("decode", "stalled", "joining") or seq.outputs >= seq.limit:
            return
        if seq.state == "decode":
            self.decoding.remove(seq)
        elif seq.state == "stalled":
            self.stalled.remove(seq)
        self._tenants(lambda: setattr(seq, "state", "frozen"), seq)

    def thaw(self, number: int) -> None:
        seq = self.seqs[number]
        self._tenants(lambda: setattr(seq, "state", "stalled"), seq)
        self.stalled.append(seq)

    def stop(self, number: int) -> tuple[int, int]:
        seq = self.seqs[number]
        return self._finish(seq, self.done)

    def step_done(self, done: StepDone) -> list[tuple[int, FinishReason, int]]:
        """Who ended, why, with how many outputs."""
        ended = []
        for stopped in done.stopped:
            seq = self.seqs.get(stopped.seq)
            if seq is not None:
                if stopped.output is not None:
                    self._cache_output(seq, stopped.output, done.step)
                ended.append((seq.id, FinishReason.STOP, self._finish(seq, done.step)[1]))
        live = [s for s in self.seqs.values() if s.state in ("joining", "decode", "draining")]
        for seq in sorted(live, key=lambda s: s.entry):
            self.visits += 1
            if seq.outputs == seq.limit and seq.last == done.step:
                ended.append((seq.id, FinishReason.LENGTH, self._finish(seq, done.step)[1]))
        self.done = done.step
        self.pool.release(done.step)
        self.slots.release(done.step)
        return ended

    def plan(self, at_ns: int) -> list[Row] | None:
        """Every row of the next step."""
        step, self.calm, self.now = self.step + 1, True, at_ns
        self.swapped = []
        for seq in sorted(self.running, key=lambda s: s.entry):
            self.visits += 1
            if seq.state in ("joining", "decode"):
                if seq.outputs == seq.limit:
                    self._leave(seq, self.step)
                    seq.state, seq.table = "draining", []
                elif seq.state == "joining":
                    self._enter(seq, new=False)
        self._grant()
        if self.calm and self.order == "priority" and not self.stalled:
            self._displace(step)
        rows: list[Row] = []
        overlap_ok = self.params.overlap_prefills or self.decoding or self.step == self.done
        if overlap_ok or self.last_kind != "prefill":
            self._prefill(step, rows)
        if not self.decoding and not rows and not self.swapped:
            return None if self.calm or self.step > self.done else self.plan(at_ns)
        self.last_kind = "dummy"
        if rows:
            self.last_kind = "mixed" if self.decoding else "prefill"
        elif self.decoding:
            self.last_kind = "decode"
        for seq in self.decoding:
            self.visits += 1
            rows.append((seq.id, seq.computed, 1, tuple(seq.table)))
            seq.computed += 1
            seq.outputs += 1
            seq.samples.append(step)
            if self.order == "fair":
                cost = self._number("output_cost", 2) * UNIT // seq.request.tenant_weight
                self.served[seq.request.tenant] += cost
        self.step = step
        return rows

    # Parts

    def _enter(self, seq: One, *, new: bool = True) -> None:
        seq.state = "decode"
        self.decoding.append(seq)
        if new:
            self.entries += 1
            seq.entry = self.entries
        slo = seq.request.slo
        allowed = [slo.tpot_ns] if slo.tpot_ns else []
        if slo.e2e_deadline_ns is not None and slo.e2e_deadline_ns > self.now:
            allowed.append((slo.e2e_deadline_ns - self.now) // max(seq.limit - seq.outputs, 1))
        seq.allowance = min(allowed, default=None)

    def _grant(self) -> None:
        owed = 0
        due = [s for s in self.decoding if s.computed == len(s.table) * self.size]
        for seq in self.stalled + due:
            if seq.state not in ("stalled", "decode"):
                continue
            opens = seq.computed == len(seq.table) * self.size
            if opens and not self._room(seq, owed):
                continue
            free = seq.reserve > 0 or self.pool.available > 0
            if seq.state == "stalled":
                if seq.last > self.done or (opens and not free):
                    owed += opens
                    continue
                self.stalled.remove(seq)
                if opens:
                    self._own(seq)
                self._enter(seq, new=seq.last != self.step)
            elif free:
                self._own(seq)
            else:
                self.decoding.remove(seq)
                self.stalled.append(seq)
                seq.state = "stalled"
                owed += 1

    def _room(self, seq: One, owed: int) -> bool:
        while not (seq.reserve or self.pool.available > 0) and owed >= self.pool.fenced:
            victim = self.victim()
            assert victim is not None
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _own(self, seq: One) -> None:
        seq.table += self.pool.take(1)
        if seq.reserve:
            seq.reserve -= 1
            self.pool.reserved -= 1

    def _leave(self, seq: One, fence: int) -> None:
        self._tenants(lambda: self.running.remove(seq), seq)
        for group in (self.decoding, self.stalled):
            if seq in group:
                group.remove(seq)
        self.pool.drop(seq.table, fence, self.done)
        if seq.reserve:
            self.pool.set_reserve(-seq.reserve)
            seq.reserve = 0

    def _preempt(self, seq: One) -> None:
        _cost, swap = self.redo(seq)
        if swap:
            self._leave(seq, self.step + 1)
            seq.slots = self.slots.take(self._blocks(seq.computed))
            self.swapped.append(seq)
            seq.ready_after = self.step + 1
        else:
            self._leave(seq, self.step)
            seq.computed = 0
            seq.ready_after = seq.last
        seq.state, seq.table, seq.cached, seq.parent = "waiting", [], 0, seq.request.cache_root
        seq.preemptions += 1
        self.calm = False
        self._tenants(lambda: self.waiting.append(seq), seq)

    def _finish(self, seq: One, step: int) -> tuple[int, int]:
        outputs = seq.outputs - sum(1 for sampled in seq.samples if sampled > step)
        if seq.state == "waiting":
            self._tenants(lambda: self.waiting.remove(seq), seq)
            self.skips.pop(seq, None)
            if seq.slots:
                self.slots.drop(seq.slots, max(seq.ready_after, self.step), self.done)
        elif seq.state in ("prefill", "joining", "decode", "stalled", "frozen"):
            self._leave(seq, self.step)
        seq.state = "over"
        del self.seqs[seq.id]
        return seq.id, outputs

    def _hits(self, seq: One, step: int) -> list[int]:
        if not seq.hashes or seq.slots:
            return []
        limit = (seq.target - 1) // self.size
        return self.pool.match(seq.request.cache_root, seq.hashes, seq.raw, limit, step)

    def _need(self, seq: One, hits: list[int], *, soon: bool) -> int:
        total = self._blocks(seq.target)
        if seq.preemptions >= self.params.preemptions_max:
            total = self._worst(seq)
        places = [self.pool.state[b] for b in hits]
        revived = [place for place in places if place == 0 or (soon and place < 0)]
        return total - len(hits) + len(revived) + (self.params.watermark if self.running else 0)

    def _displace(self, step: int) -> None:
        head = self.head(step)
        while head is not None:
            victim = self.victim(head)
            if victim is None:
                return
            need = self._need(head, self._hits(head, step), soon=True)
            room = self.pool.available + self.pool.fenced
            if len(self.running) < self.params.max_seqs and need <= room:
                return
            self._preempt(victim)

    def _prefill(self, step: int, rows: list[Row]) -> None:
        partial = [s for s in self.running if s.state == "prefill"]
        if self.order == "priority":
            partial.sort(key=lambda s: -s.request.urgency)
        elif self.order == "shortest_remaining":
            partial.sort(key=self._remaining)
        may_admit = self.calm and not self.stalled
        while True:  # whoever is next in the order, of those in progress and those that wait
            head = self.head(step)
            behind = [s for s in partial if head is not None and self.overtakes(head, s)]
            self._advance([s for s in partial if s not in behind], step, rows, len(behind))
            partial = behind
            if not may_admit or len(self.running) >= self.params.max_seqs:
                break
            if not self._admit(step, rows, len(partial)):
                break
        self._advance(partial, step, rows, 0)

    def _advance(self, partial: list[One], step: int, rows: list[Row], behind: int) -> None:
        for at, seq in enumerate(partial):
            others = at + 1 < len(partial) or behind > 0 or self._may_admit()
            count = self._count(seq, seq.computed, rows, others=others)
            if count < 1:
                return
            self._chunk(seq, step, count, rows)

    def _admit(self, step: int, rows: list[Row], behind: int) -> bool:
        head = self.head(step)
        if head is None or head.ready_after > self.done:
            return False
        hits = self._hits(head, step)
        if sum(row[2] for row in rows) + len(self.decoding) >= self.params.step_tokens:
            return False
        if self._need(head, hits, soon=False) > self.pool.available:
            self.blocked = (self.waiting.changes, self.pool.epoch, step, self.pool.evicted)
            return False
        start = max(len(hits) * self.size, head.computed)
        others = behind > 0 or (len(self.waiting) > 1 and len(self.running) + 1 < self.params.max_seqs)
        count = self._count(head, start, rows, others=others)
        if count < 1:
            return False
        self._start(head, hits, step)
        self._chunk(head, step, count, rows)
        return True

    def _may_admit(self) -> bool:
        """Could the queue use this step, as far as the last look at its head tells."""
        if not self.waiting or len(self.running) >= self.params.max_seqs:
            return False
        if self.blocked is None or self.order == "fair":
            return True
        changes, epoch, step, evicted = self.blocked
        if self.order == "lpm" and evicted != self.pool.evicted:
            return True
        return changes != self.waiting.changes or epoch != self.pool.epoch or self.pool.last_registered >= step

    def _count(self, seq: One, start: int, rows: Iterable[Row], *, others: bool) -> int:
        planned = [(row[1], row[2]) for row in rows]
        used = sum(count for _start, count in planned)
        room = min(self.params.step_tokens - len(self.decoding) - used, seq.target - start)
        if room < 1:
            return 0
        kind, params = self.params.chunk.type, self.params.chunk.params
        most = params.get("tokens", 0)
        assert isinstance(most, int)
        if kind == "constant":
            return min(most, room)
        least = params["tokens_min"]
        assert isinstance(least, int)
        room = min(room, most)
        if kind == "dynamic":
            limit = self.belief.step_ns(0, 0, most, pairs(0, most))
            return min(room, max(self._largest(start, room, limit, (0, 0, 0, 0)), least))
        allowances = [s.allowance for s in self.decoding if s.allowance is not None]
        size = room
        if allowances:
            context = sum(s.computed + 1 for s in self.decoding)
            seen = sum(pairs(a, b) for a, b in planned)
            base = (len(self.decoding), context, used, seen)
            size = self._largest(start, room, int(min(allowances) * 0.9), base)
        if others:
            size = -(-size // 2)
        return min(room, max(size, least - used))

    def _largest(self, start: int, room: int, limit: int, base: tuple[int, int, int, int]) -> int:
        decodes, context, tokens, seen = base
        size = 0
        while size < room:
            took = self.belief.step_ns(decodes, context, tokens + size + 1, seen + pairs(start, size + 1))
            if took > limit:
                break
            size += 1
        return size

    def _start(self, seq: One, hits: list[int], step: int) -> None:
        total = self._blocks(seq.target)
        for block in hits:
            self.pool.share(block)
        seq.table = hits + self.pool.take(total - len(hits))
        if seq.preemptions >= self.params.preemptions_max:
            seq.reserve = self._worst(seq) - total
            self.pool.set_reserve(seq.reserve)
        if seq.slots:
            self.slots.drop(seq.slots, step, self.done)
            seq.slots = []
        else:
            seq.computed = len(hits) * self.size
            if hits:
                seq.cached, seq.parent = len(hits), self.pool.index.identity(hits[-1])
        if self.order == "lpm":
            oldest = min(self.waiting, key=self.wait_key)
            if oldest is not seq:
                self.skips[oldest] = self.skips.get(oldest, 0) + 1
        self.skips.pop(seq, None)

        def move() -> None:
            seq.state = "prefill"
            self.running.append(seq)
            self.waiting.remove(seq)

        self._tenants(move, seq)

    def _chunk(self, seq: One, step: int, count: int, rows: list[Row]) -> None:
        rows.append((seq.id, seq.computed, count, tuple(seq.table)))
        seq.computed += count
        self.visits += 1
        if self.order == "fair":
            self.served[seq.request.tenant] += count * UNIT // seq.request.tenant_weight
        if seq.raw:
            self._cache(seq, min(seq.computed // self.size, len(seq.hashes)), step)
        if seq.computed == seq.target:
            seq.state = "joining"
            seq.outputs += 1
            seq.samples.append(step)
            self.entries += 1
            seq.entry = self.entries

    def _cache(self, seq: One, full: int, step: int) -> None:
        for i in range(seq.cached, full):
            if seq.parent != BROKEN:
                one = range(i, i + 1)
                seq.parent = self.pool.register_run(seq.table, seq.hashes, seq.raw, one, seq.parent, step)
        seq.cached = max(seq.cached, full)

    def _cache_output(self, seq: One, output: tuple[int, ...], step: int) -> None:
        if not seq.raw or not seq.table:
            return
        tokens = array("I", [*seq.request.prompt, *output])
        full = min((len(tokens) - 1) // self.size, len(seq.table))
        if full <= len(seq.hashes):
            return
        seq.raw = tokens.tobytes()
        for i in range(len(seq.hashes), full):
            parent = seq.hashes[-1] if seq.hashes else seq.request.cache_root
            seq.hashes.append(chain(parent, tokens[i * self.size : (i + 1) * self.size]))
        self._cache(seq, full, step)
