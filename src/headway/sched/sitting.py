"""The stay of a picture or a video at a diffusion replica."""

from bisect import bisect_right
from collections.abc import Sequence

from msgspec.structs import replace

from headway.core.artifacts import CARRIED_BYTES_MAX, Made, StageTimes
from headway.core.evidence import WorkerMarks
from headway.core.ids import NodeId
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import Ns
from headway.sched.diffusion.warming import size_words
from headway.sched.stays import Stay, Sums


class Sitting(Stay):
    """Steps done, and where the time of its plans went."""

    def __init__(self, request: DiffusionRequest, epoch: int, front: NodeId, seq: int, at_ns: Ns) -> None:
        super().__init__(request, epoch, front, seq, at_ns)
        self.done = self._begun = request.begun
        self._previews, self._is_saved = request.preview_steps, request.save_every > 0
        self.is_leaving = self.is_cold = False
        self.ends: FinishReason | None = None  # with the step that is under way
        self._brought_bytes = request.content.brought_bytes
        self._text_ns = self._encode_ns = self._decode_ns = 0

    @property
    def request_size(self) -> str:
        """For people."""
        assert isinstance(self.request, DiffusionRequest)  # no other sits here
        return size_words(self.request.shape)

    @property
    def is_interrupted(self) -> bool:
        """It waits for its batch to go on."""
        return self._out_ns is not None

    @property
    def has_gone_on(self) -> bool:
        """Steps were done here."""
        return self.done > self._begun

    def leave(self) -> None:
        """Its next checkpoint is its last word."""
        self.is_leaving = self._is_saved = True

    def interrupt(self, sums: Sums, at_ns: Ns) -> None:
        """Its batch gave way."""
        self.exit(sums, at_ns)
        self.preemptions += 1

    def did(self, done: int, stages: StageTimes | None) -> None:
        """One of its plans is over."""
        self.done = done
        if stages is not None:
            self._text_ns += stages.text_encode_ns
            self._encode_ns += stages.vae_encode_ns
            self._decode_ns += stages.vae_decode_ns

    def told_of(self, made: Sequence[Made]) -> tuple[Made, ...]:
        """What its front hears of. A checkpoint that made room here is nobody else's, nor is one that no message
        carries; previews are numbered over all replicas: an engine that goes on knows only its own."""
        room = CARRIED_BYTES_MAX - self._brought_bytes  # they travel together when it goes on elsewhere
        asked = [one for one in made if one.kind != "checkpoint" or (self._is_saved and len(one.body) <= room)]
        return tuple(
            replace(one, index=bisect_right(self._previews, one.steps) - 1) if one.kind == "preview" else one
            for one in asked
        )

    def sat(self, marks: WorkerMarks, devices: int) -> WorkerMarks:
        """Add what only pictures have to the evidence; every device that the replica holds was busy with it."""
        if self.scheduled_ns is None:
            return marks
        return replace(
            marks,
            denoised_ns=marks.finished_ns,
            steps=self.done,
            device_ns=marks.device_ns * devices,
            preempted_ns=marks.preempted_before_first_ns,  # a picture has no first token
            preempted_before_first_ns=0,
            text_encode_ns=self._text_ns,
            vae_encode_ns=self._encode_ns,
            vae_decode_ns=self._decode_ns,
            is_cold=self.is_cold,
        )
