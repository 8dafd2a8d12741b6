"""What a front does with the tokens of replicas: deliver, and learn that an answer began or outgrew its forecast."""

from headway.core.effects import Beat, Effect
from headway.core.ids import NodeId
from headway.core.messages import Begun, Tokens
from headway.core.units import Ns
from headway.sched.admission.protocol import Began
from headway.sched.book import Book, Tracked
from headway.sched.chorus import part
from headway.sched.dispatch import Dispatcher
from headway.sched.foresight import due
from headway.sched.recovery import Recovery


class Streaming:
    """Appends what must be done to `out`."""

    def __init__(self, book: Book, dispatch: Dispatcher, recovery: Recovery, out: list[Effect]) -> None:
        self._book, self._dispatch, self._recovery, self._out = book, dispatch, recovery, out

    def tokens(self, src: NodeId, message: Tokens, at_ns: Ns) -> None:
        """Deliver one step's tokens, and settle the take-overs that waited for them."""
        if self._recovery.endings.hedged:
            self._recovery.hedge_spoke(src, message.requests, message.epochs, at_ns)
        if message.beat >= 0 or message.left:
            self._beat(src, message, at_ns)
            if not message.requests:
                return
        for tracked, deliver in self._book.take(src, message, at_ns):
            self._out.append(deliver)
            if deliver.index == 0 or tracked.attempts:
                self._recovery.answered(tracked, src, at_ns)
                cached = tracked.cached_tokens if deliver.index == 0 else None  # a resumed stay's is not told
                self._dispatch.router.begun(tracked.request, src, cached, at_ns)
            if deliver.index == 0:
                self._dispatch.gate.hear(Began(at_ns, tracked.request.id), tracked.request.model)
            if deliver.index >= tracked.output_due:
                self._outgrown(src, tracked, deliver.index + 1)
            if tracked.take_over is not None:
                self._recovery.endings.ownership.settle(tracked, at_ns)

    def _outgrown(self, src: NodeId, tracked: Tracked, tokens: int) -> None:
        tracked.request = self._book.foresight.outgrown(tracked.request, tokens)
        tracked.output_due = due(tracked.request)
        self._dispatch.router.replicas[src].expect(tracked.request)
        self._book.chorus.expect(tracked)

    def _beat(self, src: NodeId, message: Tokens, at_ns: Ns) -> None:
        """A token for all that follow the replica; those that it named as gone do not."""
        chorus, requests = self._book.chorus, self._book.requests
        for request in message.left:
            tracked = requests.get(request)
            if tracked is not None and chorus.follows(src, tracked):
                part(tracked, self._out)
        if message.beat < 0:
            return
        if message.times:
            self._out.append(Beat(src, message.beat, message.times))
            for tracked in chorus.beats(src, message.beat, message.step, message.times):
                self._outgrown(src, tracked, len(tracked.emitted))
            return
        self._out.append(Beat(src, message.beat))
        due, watched = chorus.beat(src, message.beat, message.step, at_ns)
        for tracked in due:
            self._outgrown(src, tracked, len(tracked.emitted))
        for tracked in watched:
            self._recovery.endings.ownership.settle(tracked, at_ns)

    def begun(self, src: NodeId, message: Begun, at_ns: Ns) -> None:
        """A relayed answer has begun: it can no longer be run elsewhere."""
        tracked = self._book.requests.get(message.request)
        if tracked is not None:
            self._recovery.settle_hedge(tracked, src, message.epoch, at_ns)
        if tracked is None or tracked.is_over or tracked.owner != src or message.epoch != tracked.epoch:
            return
        self._book.begin(tracked, at_ns)
        self._recovery.answered(tracked, src, at_ns)
        self._dispatch.router.begun(tracked.request, src, None, at_ns)
        self._dispatch.gate.hear(Began(at_ns, tracked.request.id), tracked.request.model)
