"""What one request of a load looked like to its client, from a server or from the simulator."""

import msgspec

from headway.core.units import Ns


class Outcome(msgspec.Struct, frozen=True):
    """`times_ns`: when each piece of output arrived. `error`: a code of the server, or of the client."""

    sent_ns: Ns
    ended_ns: Ns
    times_ns: tuple[Ns, ...] = ()
    output_tokens: int = 0
    prompt_tokens: int = 0
    error: str | None = None
    message: str | None = None  # what the server said of its error
    wanted_tokens: int | None = None  # of output, if nothing cuts it short; None: nobody knows, as of a server
    images: int = 0  # that came
    video_s: float | None = None  # seconds of video that came; None: no video, or nobody knows its frames per second

    @property
    def ttft_ns(self) -> Ns | None:
        """From sending to the first piece of output."""
        return self.times_ns[0] - self.sent_ns if self.times_ns else None

    @property
    def tpot_ns(self) -> float | None:
        """Mean time per output token after the first (REFERENCE 1); None for a single token."""
        if not self.times_ns or self.output_tokens < 2:
            return None
        return (self.times_ns[-1] - self.times_ns[0]) / (self.output_tokens - 1)
