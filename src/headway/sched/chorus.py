"""The streams of a front that follow the beats of their replicas, and the beats at which something is due."""

from headway.core.effects import Deliver, Effect
from headway.core.ids import NodeId
from headway.core.units import Ns
from headway.sched.beats import Beats
from headway.sched.tracked import Tracked


class Verse(Beats):
    """The beats of one replica."""

    __slots__ = ("due", "watched")

    def __init__(self) -> None:
        super().__init__()
        self.due: dict[int, list[Tracked]] = {}  # beat -> who outgrows its predicted length with it
        self.watched: list[Tracked] = []  # a take-over waits for their tokens


class Chorus:
    """All replicas that beat."""

    def __init__(self) -> None:
        self._verses: dict[NodeId, Verse] = {}

    def _verse(self, replica: NodeId) -> Verse:
        verse = self._verses.get(replica)
        if verse is None:
            verse = self._verses[replica] = Verse()
        return verse

    def join(self, replica: NodeId, tracked: Tracked) -> None:
        """The next tokens of a stream come with the beats."""
        tracked.follow(self._verse(replica))
        self.expect(tracked)
        if tracked.take_over is not None:
            self.watch(tracked)

    def expect(self, tracked: Tracked) -> None:
        """Know the beat with which it outgrows its predicted length."""
        verse = tracked.beats
        if isinstance(verse, Verse):
            missing = max(1, tracked.output_due + 1 - len(tracked.tokens))
            tracked.beat_due = verse.count + missing
            if missing < 1 << 40:  # else nobody predicted it
                verse.due.setdefault(tracked.beat_due, []).append(tracked)

    def watch(self, tracked: Tracked) -> None:
        """Each of its tokens may settle something."""
        verse = tracked.beats
        if isinstance(verse, Verse):
            verse.watched.append(tracked)

    def follows(self, replica: NodeId, tracked: Tracked) -> bool:
        """True when its tokens come with the beats of that replica."""
        return tracked.beats is not None and tracked.beats is self._verses.get(replica)

    def beats_due(self, replica: NodeId) -> int | None:
        """How many beats from now somebody outgrows its predicted length, or is watched; None: nobody will."""
        verse = self._verses.get(replica)
        if verse is None:
            return None
        if verse.watched:
            return 1
        return min([beat for beat in verse.due if beat > verse.count], default=verse.count) - verse.count or None

    def beats(self, replica: NodeId, token: int, step: int, times: tuple[Ns, ...]) -> list[Tracked]:
        """Count several; return whose predicted length proved too short by one of them."""
        verse = self._verse(replica)
        before = verse.count
        verse.ticks(len(times), token, step, times[-1])
        if not verse.due:
            return []
        passed = sorted(beat for beat in verse.due if before < beat <= verse.count)
        tardy = [tracked for beat in passed for tracked in verse.due.pop(beat)]
        return [t for t in dict.fromkeys(tardy) if t.beats is verse and before < t.beat_due <= verse.count]

    def beat(self, replica: NodeId, token: int, step: int, at_ns: Ns) -> tuple[list[Tracked], list[Tracked]]:
        """Count one; return whose predicted length proved too short by it, and who is watched."""
        verse = self._verse(replica)
        verse.tick(token, step, at_ns)
        due = verse.due.pop(verse.count, None)
        if due is None and not verse.watched:
            return [], []
        here = list(dict.fromkeys(t for t in due or () if t.beats is verse and t.beat_due == verse.count))
        if verse.watched:
            verse.watched = [t for t in verse.watched if t.beats is verse and t.take_over is not None]
        return here, verse.watched


def part(tracked: Tracked, out: list[Effect]) -> None:
    """A stream stops to follow; its client learns that no token comes with the next beat."""
    if tracked.beats is not None:
        tracked.part()
        if not tracked.is_over:
            out.append(Deliver(tracked.request.id, len(tracked.tokens), ()))
