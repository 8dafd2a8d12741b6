"""Two ways of running one world compared: everything that a run leaves behind (SPEC J6)."""

from collections.abc import Mapping

import msgspec

from headway.core.events import MessageArrived
from headway.core.ids import RequestId
from headway.core.messages import Tokens
from headway.core.units import Ns
from headway.sim.driver import Machine
from headway.sim.fleet import Fleet
from headway.sim.tokenless import TokenlessEngine


class Seen:
    """Everything that a run leaves behind, as bytes."""

    CLAIMS = ("tokens", "ends", "decisions", "records", "counters", "busy", "recovery")

    def __init__(self, ran: Fleet) -> None:
        streams = ran.sim.clients.streams
        encode = msgspec.json.Encoder().encode
        self.records = [encode(stream.evidence) for stream in streams.values()]
        self.ends = [encode(stream.end) for stream in streams.values()]
        self.tokens = {name: (stream.tokens, stream.times_ns) for name, stream in streams.items()}
        self.decisions = [encode(decision) for decision in ran.sim.clients.decisions]
        self.counters = [ran.worker(place).worker.machine.counters() for place in range(2)]
        self.busy = [life.executor.busy_ns for life in ran.sim.lives.values() if life.executor is not None]
        self.recovery = ran.front.recovery_figures()
        self.heard = [
            turn.event.message
            for turn in ran.sim.log.turns()
            if isinstance(turn.event, MessageArrived) and isinstance(turn.event.message, Tokens)
        ]

    def differs_in(self, other: "Seen") -> list[str]:
        """What anybody can see that the other way left otherwise."""
        return [name for name in self.CLAIMS if getattr(self, name) != getattr(other, name)]


def without_tokens(ran: Fleet, lengths: Mapping[RequestId, int]) -> None:
    """Give every replica an engine that only knows how long answers get."""
    for replica in ran.replicas:
        real = ran.sim._machines[replica]
        ran.sim._machines[replica] = Machine(real.build, lambda: TokenlessEngine(lengths), real.truth)
        ran.sim.restart(replica)


def run_out(ran: Fleet, count: int, rest_ns: Ns) -> None:
    """Run until so many clients have their end, and a while longer."""
    ran.sim.run(is_done=lambda: len(ran.sim.clients.streams) == count and not ran.sim.clients.open)
    ran.sim.run(until_ns=ran.sim.now_ns + rest_ns)
