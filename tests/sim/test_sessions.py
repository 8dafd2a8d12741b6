"""Sessions against the real scheduler and block pool: what a next turn repeats is found in the prefix cache."""

import msgspec
from tests.sim.workloads import ENGINE, fleet

from headway.core.request import LlmRequest
from headway.workload.build import build
from headway.workload.lengths import Lengths
from headway.workload.mint import Served
from headway.workload.spec import Sessions


def fixed(mean: float) -> Lengths:
    return Lengths(kind="fixed", mean=mean)


def test_the_next_turn_finds_prompt_and_answer_of_the_one_before_in_the_cache() -> None:  # SPEC J2, B2
    block = ENGINE.block_size
    spec = Sessions(count=2, turns=fixed(3), user=fixed(37), output=fixed(29), max_tokens=29, system_tokens=70)
    spec = msgspec.structs.replace(spec, tells_length=True)
    source = build([spec], 0, (Served("synthetic", block),))
    ran = fleet(replicas=1)
    clients = ran.sim.clients
    shared = 0  # tokens that the session's next prompt repeats of what has been computed
    for first in source.first():
        item = first
        while True:
            request = item.request
            assert isinstance(request, LlmRequest)
            ran.offer([request])
            ran.sim.run()
            stream = clients.streams[request.id]
            assert len(stream.tokens) == 29
            assert stream.evidence is not None
            assert stream.evidence.cached_tokens == shared // block * block
            after = source.after(request.id, ran.sim.now_ns, stream.tokens)
            if after is None:
                break
            shared = len(request.prompt) + 29 - 1  # the last token is sampled, its KV is not computed
            item = after
        shared = 70  # the next session's system prompt
