"""Orders whose keys do not change while a request waits or runs: O(log n) per change, O(1) per look."""

from bisect import bisect_left
from typing import ClassVar

import msgspec

from headway.core.decisions import ALTERNATIVES_MAX
from headway.sched.llm.policies._sorted import Key, SortedSeqs
from headway.sched.llm.protocols import VICTIMS_MAX, HeadDependsOn, OrderContext
from headway.sched.llm.sequence import Seq


class Victims:
    """The running that may be preempted: least urgent first, then latest arrival.

    Sorted by one number each: to look for a tuple among those of 4,096 running reads three times as much cold memory.
    """

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._seqs: list[Seq] = []  # beside their keys

    def add(self, seq: Seq) -> None:
        """`seq`, which is not in, may be preempted from now on."""
        key = _victim_key(seq)
        at = bisect_left(self._keys, key)
        self._keys.insert(at, key)
        self._seqs.insert(at, seq)

    def discard(self, seq: Seq) -> None:
        """It may not any more."""
        at = bisect_left(self._keys, _victim_key(seq))
        if at < len(self._seqs) and self._seqs[at] is seq:
            del self._keys[at]
            del self._seqs[at]

    def first(self) -> list[Seq]:
        """Up to VICTIMS_MAX of the lowest urgency there is."""
        window = self._seqs[:VICTIMS_MAX]
        return [seq for seq in window if seq.urgency == window[0].urgency]

    def __len__(self) -> int:
        return len(self._seqs)


def _victim_key(seq: Seq) -> int:
    """Orders as (urgency, -arrived_ns, -id) does; both times and ids have less than 64 bits."""
    return (((seq.urgency << 64) - seq.arrived_ns) << 64) - seq.id


class StaticOrder:
    """Two sorted lists; a subclass gives the key of a waiting request."""

    displaces: ClassVar[bool] = False
    competes: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = False
    head_depends_on: ClassVar[HeadDependsOn] = "queue"

    def __init__(self, params: msgspec.Struct, context: OrderContext) -> None:
        self.context = context
        self.queue, self.running = SortedSeqs(), Victims()

    def wait_key(self, seq: Seq) -> Key:
        """Smallest is next. Fixed while `seq` waits, and unique."""
        raise NotImplementedError

    def head(self, step: int) -> Seq | None:
        """The request to admit next."""
        return self.queue.peek()

    def victims(self, step: int) -> list[Seq]:
        """Who may give way, first choice first."""
        return self.running.first()

    def outranks(self, head: Seq, running: Seq) -> bool:
        """Equal urgency never displaces; an order without urgency never does."""
        return False

    def turn(self, seq: Seq) -> int:
        """As admitted, where prompts do not take turns."""
        return 0

    def overtakes(self, head: Seq, partial: Seq) -> bool:
        """Never, where prompts do not take turns."""
        return False

    def score(self, seq: Seq, step: int) -> float:
        """The part of the key that decides."""
        return float(self.wait_key(seq)[-2])

    def runners_up(self, step: int) -> list[Seq]:
        """The first few of the queue."""
        return [seq for _key, seq in self.queue.first(ALTERNATIVES_MAX)]

    def observe_wait(self, seq: Seq, step: int) -> None:
        """`seq` queues."""
        self.queue.push(seq, self.wait_key(seq))

    def observe_unwait(self, seq: Seq, step: int) -> None:
        """`seq` left the queue."""
        self.queue.discard(seq)

    def observe_start(self, seq: Seq, step: int, victim: bool) -> None:
        """`seq` holds blocks."""
        if victim:
            self.running.add(seq)

    def observe_stop(self, seq: Seq, step: int) -> None:
        """`seq` holds none any more."""
        self.running.discard(seq)

    def observe_decode(self, seq: Seq, step: int, change: int) -> None:
        """Nothing to count."""

    def observe_prefill(self, seq: Seq, step: int, tokens: int) -> None:
        """Nothing to count."""
