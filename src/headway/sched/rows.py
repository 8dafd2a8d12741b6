"""The tokens of one step as their fronts get them: each by name, or, without content, one for all who follow."""

from headway.core.effects import Effect, Send
from headway.core.events import StepDone, StepsDone
from headway.core.ids import NodeId, RequestId
from headway.core.messages import Tokens, TokenScores
from headway.core.plans import StepPlan
from headway.core.units import Ns
from headway.sched.beats import Beats
from headway.sched.stays import Stay


class Rows:
    """One front's tokens of one step, as parallel lists."""

    def __init__(self) -> None:
        self.requests: list[RequestId] = []
        self.epochs: list[int] = []
        self.indices: list[int] = []
        self.tokens: list[int] = []
        self.scores: list[TokenScores | None] = []
        self.cached: list[tuple[int, int]] = []
        self.follow: list[int] = []
        self.left: tuple[RequestId, ...] = ()
        self.beat = -1

    def message(self, step: int) -> Tokens:
        """Return them as the message that fronts get."""
        arrays = tuple(self.requests), tuple(self.epochs), tuple(self.indices), tuple(self.tokens)
        beats = self.left, self.beat, tuple(self.follow)
        return Tokens(*arrays, step, tuple(self.scores), tuple(self.cached), *beats)


class Choir:
    """What a step sampled, sent to the fronts; and the stays that follow the beats of their replica."""

    def __init__(self) -> None:
        self._beats = Beats()
        self._stays: dict[NodeId, dict[int, Stay]] = {}
        self._left: dict[NodeId, list[RequestId]] = {}

    def _join(self, stay: Stay) -> None:
        """Its next tokens come with the beats."""
        stay.follow(self._beats)
        self._stays.setdefault(stay.front, {})[stay.seq] = stay

    def leave(self, stay: Stay, *, is_told: bool = False) -> None:
        """It has no row any more; `is_told`: its front hears so by another message."""
        if stay.beats is None:
            return
        stay.part()
        del self._stays[stay.front][stay.seq]
        if not is_told:
            self._left.setdefault(stay.front, []).append(stay.request_id)

    def sort_out(self, plan: StepPlan, stays: dict[int, Stay]) -> None:
        """Who has no row in this step leaves. Call it before the beat."""
        for seq in (*plan.leave, *plan.preempt, *plan.pause):
            if (stay := stays.get(seq)) is not None:
                self.leave(stay)

    def scatter(self) -> None:
        """Every row is void."""
        for members in self._stays.values():
            for stay in list(members.values()):
                self.leave(stay)

    def _beat(self, token: int, step: int, at_ns: Ns, rows: dict[NodeId, Rows]) -> None:
        """Everybody gets a token; their fronts hear it once."""
        self._beats.tick(token, step, at_ns)
        for front, members in self._stays.items():
            if members:
                row = rows[front] = Rows()
                row.beat = token

    def emit_run(self, done: StepsDone, last: int, out: list[Effect]) -> None:
        """Send each front the beats of several steps, in one message."""
        times = tuple([timing.done_ns for timing in done.timings])
        self._beats.ticks(len(times), done.beat, last, done.at_ns)
        for front, members in self._stays.items():
            if members:
                left = tuple(self._left.pop(front)) if front in self._left else ()
                out.append(Send(front, Tokens((), (), (), (), last, left=left, beat=done.beat, times=times)))

    def emit(self, done: StepDone, plan: StepPlan, stays: dict[int, Stay], out: list[Effect]) -> None:
        """Send each front its tokens of this step, in one message."""
        at_ns, step, is_scored = done.at_ns, done.step, bool(done.scores)
        if not done.seqs and done.beat >= 0:  # steady decode
            self._beats.tick(done.beat, step, at_ns)
            for front, members in self._stays.items():
                if members:
                    left = tuple(self._left.pop(front)) if front in self._left else ()
                    out.append(Send(front, Tokens((), (), (), (), step, left=left, beat=done.beat)))
            return
        rows: dict[NodeId, Rows] = {}
        joined: set[int] = set()
        if done.beat >= 0:
            self._beat(done.beat, step, at_ns, rows)
            joined = {join.seq for join in plan.join}
        for place, (seq, token) in enumerate(zip(done.seqs, done.tokens, strict=True)):
            stay = stays.get(seq)
            if stay is None:  # it ended while this step ran
                continue
            row = rows.get(stay.front)
            if row is None:
                row = rows[stay.front] = Rows()
            if not stay.told:
                row.cached.append((len(row.requests), stay.cached_tokens or 0))
            row.requests.append(stay.request_id)
            row.epochs.append(stay.epoch)
            row.indices.append(len(stay.told))
            row.tokens.append(token)
            if is_scored:
                row.scores.append(done.scores[place])
            stay.emit(token, step, at_ns)
            if seq in joined:
                row.follow.append(len(row.requests) - 1)
                self._join(stay)
        for front, row in rows.items():
            row.left = tuple(self._left.pop(front, ()))
            out.append(Send(front, row.message(step)))
