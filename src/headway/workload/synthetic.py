"""Single requests: of an arrival process (open loop), or of clients that wait for their answers (closed loop)."""

from collections.abc import Iterator, Sequence

import msgspec

from headway.core.ids import RequestId
from headway.core.units import Ns, ns_from_s
from headway.workload.mint import Asked, Mint, faster, scaled_times, tenant, think_ns
from headway.workload.offered import Offered
from headway.workload.prompts import Heads, Prompt, Run, extend, run_value
from headway.workload.spec import ClosedLoop, Synthetic


class Texts:
    """Prompts and answer lengths by key."""

    def __init__(self, spec: Synthetic | ClosedLoop, mint: Mint) -> None:
        self._spec, self._mint = spec, mint
        self._heads = Heads(mint.seed, mint.name, spec.families, spec.family_skew)

    def asked(self, key: str, at_ns: Ns) -> Asked:
        """Draw a request."""
        spec, mint = self._spec, self._mint
        length = spec.prompt.draw(mint.seed, mint.draw_key(f"prompt/{key}"), 0)
        shared = min(spec.shared_tokens, length) if spec.families else 0
        prompt = Prompt()
        if shared:
            prompt = self._heads.head(self._heads.family(key), shared, mint.root, mint.block_tokens)
        own = Run(run_value(mint.seed, mint.draw_key(f"own/{key}")), length - shared)
        prompt = extend(prompt, (own,), mint.root, mint.block_tokens)
        return Asked(key, at_ns, prompt, spec.output.draw(mint.seed, mint.draw_key(f"output/{key}"), 0))


class SyntheticSource:
    """Open loop."""

    def __init__(self, spec: Synthetic, mint: Mint) -> None:
        self._spec, self._mint, self._texts = spec, mint, Texts(spec, mint)

    def first(self) -> Iterator[Offered]:
        """Every request."""
        spec, mint = self._spec, self._mint
        arrivals = faster(spec.arrivals, spec.rate_scale)
        at = scaled_times(spec, arrivals, mint.seed, mint.draw_key("arrival"))
        for place, at_ns in zip(range(spec.count), at, strict=False):
            yield mint.offer(self._texts.asked(str(place), at_ns))

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:  # noqa: ARG002  Source
        """Open loop waits for nothing."""
        return None


class ClosedLoopSource:
    """`clients` clients with one request each."""

    def __init__(self, spec: ClosedLoop, mint: Mint) -> None:
        self._spec, self._mint, self._texts = spec, mint, Texts(spec, mint)
        self._sent = self._begun = 0
        self._places: dict[RequestId, tuple[int, int]] = {}  # client and its how manieth, of what is in flight

    def first(self) -> Iterator[Offered]:
        """The first request of each client."""
        spec = self._spec
        for client in range(min(spec.clients, spec.count)):
            begun_s = spec.start_s + spec.ramp_s * spec.time_scale * client / spec.clients
            yield self._send(client, 0, ns_from_s(begun_s))

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:  # noqa: ARG002  Source
        """The next request of the client, until all of `count` are sent."""
        client, place = self._places.pop(request)
        # What has not begun by now still will: it has its place among `count`.
        unsent = max(0, min(self._spec.clients, self._spec.count) - self._begun)
        if self._sent + unsent >= self._spec.count:
            return None
        key = self._mint.draw_key(f"think/{client}/{place}")
        think = think_ns(self._spec.think, self._spec.time_scale, self._mint.seed, key)
        return self._send(client, place + 1, ended_ns + think)

    def _send(self, client: int, place: int, at_ns: Ns) -> Offered:
        mint = self._mint
        who = tenant(self._spec, mint.seed, mint.draw_key(f"client/{client}"))
        asked = self._texts.asked(f"{client}.{place}", at_ns)
        offered = mint.offer(msgspec.structs.replace(asked, tenant=who))
        self._places[offered.request.id] = (client, place)
        self._sent += 1
        self._begun += place == 0
        return offered
