"""The one point where the owner of a request changes: the front accepts epoch + 1 once its stream has caught up."""

from headway.core.effects import Effect, Send
from headway.core.ids import NodeId
from headway.core.messages import TakeOver, TakeOverAck
from headway.core.units import Ns
from headway.sched.book import OPEN_STATES, Book, Tracked
from headway.sched.chorus import part
from headway.sched.router.machine import Router


class Ownership:
    """Answers take-overs of hand-off and migration. Appends what must be done to `out`."""

    def __init__(self, book: Book, router: Router, out: list[Effect]) -> None:
        self._book, self._router, self._out = book, router, out

    def asked(self, src: NodeId, message: TakeOver, at_ns: Ns) -> None:
        """Accept, refuse, or wait for tokens of the old owner that are still on their way."""
        tracked = self._book.requests.get(message.request)
        asked = (src, message.epoch, message.transfer)
        if tracked is not None and (tracked.owner, tracked.epoch, tracked.taken) == asked:
            self._ack(src, message, True)  # asked again: the first answer was lost with a connection
        elif (
            tracked is None
            or tracked.is_over
            or tracked.hedge is not None
            or tracked.state not in OPEN_STATES
            or message.epoch != tracked.epoch + 1
            or message.next_index < len(tracked.emitted)
        ):
            self._ack(src, message, False)
            if tracked is not None and tracked.owner is not None:
                self._ack(tracked.owner, message, False)
        else:
            if tracked.take_over is not None and tracked.take_over[0] != src:
                self.refuse(tracked)  # only one can take over, and the later question knows more
            tracked.take_over = (src, message)
            self.settle(tracked, at_ns)
            if tracked.take_over is not None:
                self._book.chorus.watch(tracked)

    def settle(self, tracked: Tracked, at_ns: Ns) -> None:
        """Answer a waiting take-over when the cursor has reached its first token."""
        if tracked.take_over is None or tracked.owner is None:
            return
        destination, message = tracked.take_over
        if message.next_index > len(tracked.emitted):
            return
        tracked.take_over, tracked.taken = None, message.transfer
        source = tracked.owner
        part(tracked, self._out)
        tracked.owner, tracked.epoch = destination, message.epoch
        tracked.tell(at_ns, f"{destination} took over from {source} as epoch {message.epoch}")
        self._router.move(tracked.request, source, destination, at_ns)
        self._ack(destination, message, True)
        self._ack(source, message, True)

    def refuse(self, tracked: Tracked) -> None:
        """The stream ended or goes on elsewhere: a waiting take-over will never be true."""
        if tracked.take_over is not None:
            destination, message = tracked.take_over
            tracked.take_over = None
            self._ack(destination, message, False)

    def forget(self, tracked: Tracked, node: NodeId) -> None:
        """The node that asked is gone."""
        if tracked.take_over is not None and tracked.take_over[0] == node:
            tracked.take_over = None

    def _ack(self, to: NodeId, message: TakeOver, accepted: bool) -> None:
        self._out.append(Send(to, TakeOverAck(message.request, message.epoch, message.transfer, accepted)))
