"""Prefix pull: a replica fetches the KV of a prompt's beginning from a peer that holds it, before it prefills (A4).

The request waits, held out of the queue, until the blocks are here; then they are part of the prefix cache like any
others, and its prefill finds them. Whatever goes wrong, it computes them itself. Blocks are given back only when no
byte can arrive in them any more: the source says so, or is gone.
"""

from typing import Final

import msgspec

from headway.core.blockhash import known_stride
from headway.core.decisions import Decision
from headway.core.effects import AbortCopy, Send, StartCopy, WakeAt
from headway.core.events import CopyArrived, CopyDone
from headway.core.handover import PrefixAsk, PrefixSent
from headway.core.ids import NodeId, TimerId, TransferId
from headway.core.messages import Abort, Submit
from headway.core.plans import CopyPlan
from headway.core.ports import ModelLimits
from headway.core.request import LlmRequest
from headway.core.units import Ns, ns_from_s
from headway.sched.stays import Stay
from headway.sched.transfer.outgoing import TransferParams
from headway.sched.worker import LlmWorker

TIMER: Final = "pull"


class _Fetch(msgspec.Struct):
    """At the replica that pulls."""

    request: LlmRequest
    epoch: int
    seq: int
    source: NodeId
    held: tuple[int, ...]  # blocks of the beginning that are here already
    fresh: tuple[int, ...]  # where the copy goes
    begun_ns: Ns
    sent: int | None = None  # blocks, as the source says
    has_arrived: bool = False
    is_void: bool = False  # what comes may not be used
    is_late: bool = False  # the request waits for it no more


class _Loan(msgspec.Struct):
    """At the replica that is pulled from."""

    peer: NodeId
    blocks: tuple[int, ...]
    is_void: bool = False


class Pulls:
    """Every pull in which this replica takes part, on either side."""

    def __init__(self, worker: LlmWorker, limits: ModelLimits, params: TransferParams) -> None:
        self.fetches: dict[TransferId, _Fetch] = {}
        self.loans: dict[TransferId, _Loan] = {}
        self._worker, self._limits = worker, limits
        self._timeout_ns = ns_from_s(params.timeout_s)

    # The replica that pulls

    def submitted(self, message: Submit, at_ns: Ns) -> None:
        """A request that was just taken is to begin with what a peer holds."""
        pull, stay = message.pull, self._worker.by_request.get(message.request.id)
        if pull is None or stay is None or not isinstance(stay.request, LlmRequest):
            return
        machine, request = self._worker.machine, stay.request
        held, size = machine.prefix_hits(request), self._limits.block_size
        if pull.tokens // size <= len(held):
            return
        # A front knows of every stride-th block only; what the source has beyond comes with it.
        most = pull.tokens // size + known_stride(size) - 1
        missing = min(most, (len(request.prompt) - 1) // size) - len(held)
        fresh = machine.reserve_blocks(missing)
        if fresh is None:
            self._tell(stay, "recompute", f"no room for {missing} blocks of {pull.source}", at_ns)
            return
        machine.pin_blocks(held)
        machine.await_input(stay.seq)
        self.fetches[pull.transfer] = _Fetch(request, stay.epoch, stay.seq, pull.source, held, fresh, at_ns)
        ask = PrefixAsk(pull.transfer, request, len(held), fresh, self._limits.kv_bytes_per_block)
        self._worker.out.append(Send(pull.source, ask))
        self._arm(pull.transfer, at_ns)

    def copy_arrived(self, event: CopyArrived) -> None:
        """The blocks are readable here."""
        fetch = self.fetches.get(event.transfer)
        if fetch is not None:
            fetch.has_arrived = True
            self._settle(event.transfer, fetch, event.at_ns)

    def sent(self, message: PrefixSent, at_ns: Ns) -> None:
        """The source has copied so many blocks, or has none."""
        fetch = self.fetches.get(message.transfer)
        if fetch is not None:
            fetch.sent = message.blocks
            self._settle(message.transfer, fetch, at_ns)

    def _settle(self, transfer: TransferId, fetch: _Fetch, at_ns: Ns) -> None:
        if fetch.sent == 0:
            self._end(transfer, fetch, f"{fetch.source} could not send it", at_ns)
        elif fetch.sent is not None and fetch.has_arrived:
            self._end(transfer, fetch, "", at_ns)

    def _end(self, transfer: TransferId, fetch: _Fetch, trouble: str, at_ns: Ns) -> None:
        """No byte can arrive any more. `trouble`: why nothing came."""
        del self.fetches[transfer]
        machine, count = self._worker.machine, fetch.sent or 0
        if fetch.is_void and not trouble:
            trouble = "the cache was lost meanwhile"
        if not trouble:
            machine.store_prefix(fetch.request, (*fetch.held, *fetch.fresh[:count]))
        machine.free_blocks((*fetch.held, *fetch.fresh))
        machine.ready(fetch.seq)
        stay = self._worker.stays.get(fetch.seq)
        if stay is None or fetch.is_late:
            return
        if trouble:
            self._tell(stay, "recompute", trouble, at_ns)
            return
        stay.transfer_bytes += count * self._limits.kv_bytes_per_block
        took_ms = (at_ns - fetch.begun_ns) / 1e6
        self._tell(stay, "pull", f"{count} blocks of {fetch.source} in {took_ms:.1f} ms", at_ns)

    def late(self, transfer: TransferId, at_ns: Ns) -> None:
        """Nothing came for long: the request computes by itself, and the source is asked to stop until it answers."""
        fetch = self.fetches.get(transfer)
        if fetch is None:
            return
        stay = self._worker.stays.get(fetch.seq)
        if not fetch.is_late and stay is not None:
            self._tell(stay, "recompute", f"nothing came from {fetch.source} in time", at_ns)
        fetch.is_late = True
        self._worker.machine.ready(fetch.seq)
        self._worker.out.append(Send(fetch.source, Abort(transfer, "nothing came in time")))
        self._arm(transfer, at_ns)

    def _arm(self, transfer: TransferId, at_ns: Ns) -> None:
        self._worker.out.append(WakeAt(at_ns + self._timeout_ns, TimerId(f"{TIMER}:{transfer}")))

    @staticmethod
    def _tell(stay: Stay, chosen: str, reason: str, at_ns: Ns) -> None:
        stay.decide(Decision("cache", at_ns, "pull", chosen, reason, request=stay.request.id))

    # The replica that is pulled from

    def asked(self, peer: NodeId, message: PrefixAsk) -> None:
        """Copy what is cached of the blocks that are asked for; they are pinned until they have left."""
        machine, request = self._worker.machine, message.request
        is_alike = message.block_bytes == self._limits.kv_bytes_per_block and isinstance(request, LlmRequest)
        cached = machine.prefix_hits(request) if is_alike and isinstance(request, LlmRequest) else ()
        blocks = cached[message.first : message.first + len(message.blocks)]
        if not blocks:
            self._worker.out.append(Send(peer, PrefixSent(message.transfer, 0)))
            return
        machine.pin_blocks(blocks)
        self.loans[message.transfer] = _Loan(peer, blocks)
        target, size = message.blocks[: len(blocks)], len(blocks) * self._limits.kv_bytes_per_block
        self._worker.out.append(StartCopy(CopyPlan(message.transfer, 0, peer, blocks, target, bytes=size)))

    def copy_done(self, event: CopyDone) -> None:
        """The blocks have left, or no byte of them can arrive any more."""
        loan = self.loans.pop(event.transfer, None)
        if loan is not None:
            self._worker.machine.free_blocks(loan.blocks)
            count = len(loan.blocks) if event.ok and not loan.is_void else 0
            self._worker.out.append(Send(loan.peer, PrefixSent(event.transfer, count)))

    # Either

    def aborted(self, message: Abort, at_ns: Ns) -> bool:
        """The other side gives up; False when nothing is known of the transfer."""
        fetch = self.fetches.get(message.transfer)
        if fetch is not None:
            self._end(message.transfer, fetch, message.reason, at_ns)
            return True
        if message.transfer in self.loans:
            self._worker.out.append(AbortCopy(message.transfer))
            return True
        return False

    def peer_lost(self, node: NodeId, at_ns: Ns) -> None:
        """The other side is gone: it sends nothing more, and nobody is left to send to."""
        for transfer, fetch in list(self.fetches.items()):
            if fetch.source == node:
                self._end(transfer, fetch, f"{node} was lost", at_ns)
        for transfer, loan in list(self.loans.items()):
            if loan.peer == node:
                del self.loans[transfer]
                self._worker.out.append(AbortCopy(transfer))
                self._worker.machine.free_blocks(loan.blocks)

    def voided(self) -> None:
        """No KV of before can be trusted, or may be used, on this side."""
        for fetch in self.fetches.values():
            fetch.is_void = True
        for loan in self.loans.values():
            loan.is_void = True
