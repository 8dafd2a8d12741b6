"""What a diffusion replica reports in the words of all replicas: it has no prompts to prefill and no KV."""

from collections.abc import Mapping, Sequence

from headway.core.artifacts import StageTimes
from headway.core.ledger import AccountView
from headway.core.reports import StepCoefficients
from headway.sched.diffusion.machine import DiffusionMachine


class DiffusionNumbers:
    """A look at a machine (`reporter.ReplicaNumbers`)."""

    waiting_prefill_tokens = 0
    running_kv_tokens = 0
    kv_blocks_free = 0
    blocked_tokens = 0
    block_size = 0
    step_cost: StepCoefficients | None = None  # its steps have another form: `DenoiseCoefficients`

    def __init__(self, machine: DiffusionMachine) -> None:
        self._machine = machine
        self._text_hits = self._image_hits = 0

    def encoded(self, stages: StageTimes | None) -> None:
        """A plan is over, of whose prompts some were cached."""
        if stages is not None:
            self._text_hits += stages.text_hits
            self._image_hits += stages.image_hits

    @property
    def waiting(self) -> int:
        """Requests that are in no batch yet."""
        return self._machine.waiting

    @property
    def running(self) -> int:
        """Requests of the batch that runs."""
        return self._machine.running

    def counters(self) -> Mapping[str, int]:
        """Monotonic counts."""
        return {
            "denoise_steps": self._machine.steps,
            "preemptions": self._machine.preemptions,
            "text_cache_hits": self._text_hits,
            "image_cache_hits": self._image_hits,
        }

    def accounts(self) -> Sequence[AccountView]:
        """What it holds of its device, of the host and of its cache."""
        return self._machine.holdings.views()
