"""The diffusion engine: performs denoise plans on one pipeline, stage by stage and step by step."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import torch

from headway.core.artifacts import Denoised, Made, RowFailed, RowMade, StagePeaks, StageTimes
from headway.core.errors import InvariantError
from headway.core.plans import DenoisePlan, NewDenoise, StepTiming
from headway.core.ports import DeviceMemory, Reserved
from headway.core.request import DenoiseShape, DiffusionRequest
from headway.core.units import Ns
from headway.engines.diffusion.batch import JOINED_TOKENS_MAX, Batcher, alike, owned
from headway.engines.diffusion.begin import Beginner, Spent
from headway.engines.diffusion.decodes import JOINED_PIXELS_MAX, begin_decodes
from headway.engines.diffusion.embeddings import EmbeddingCache
from headway.engines.diffusion.families.protocol import Frames, Size, Work
from headway.engines.diffusion.faults import caught, code_and_words
from headway.engines.diffusion.handed_on import Chunk, handed_on
from headway.engines.diffusion.loading import Loaded
from headway.engines.diffusion.memory import is_out_of_memory, release
from headway.engines.diffusion.outputs import finished, preview
from headway.engines.diffusion.peaks import PeakCount, StateBytes, counter_of, memory_of, peaks_of, state_of
from headway.engines.diffusion.prompts import read_by
from headway.engines.diffusion.room import PassRoom, no_room
from headway.engines.diffusion.rows import Row, save
from headway.engines.diffusion.stages import LocalStages, Stages
from headway.engines.reserved import reserved_of

MIB: Final = 1 << 20
_TRIES: Final = 3  # of one forward pass that is measured; the fastest counts


class RunSettings(msgspec.Struct, frozen=True):
    """How the engine runs what was loaded."""

    cache_mb: int = 64  # of prompt embeddings
    tile_pixels: int | None = None  # frames above are decoded in tiles; None: only those that do not fit otherwise
    guidance_scale: float | None = None  # of a request that names none; None: the family's
    chunks: tuple[Chunk, ...] = ()  # of streaming sessions that are to be served


class DiffusionEngine:
    """Called from one thread. A row that fails by itself is told and forgotten; the others go on."""

    def __init__(
        self, loaded: Loaded, settings: RunSettings, clock: Callable[[], Ns], stages: Stages | None = None
    ) -> None:
        self._loaded, self._family, self._clock = loaded, loaded.family, clock
        self.stages = stages or LocalStages(loaded.family, loaded.pipeline.vae, settings.tile_pixels)
        self.embeddings = EmbeddingCache(loaded.encoder_hash, settings.cache_mb * MIB)
        self._beginner = Beginner(loaded, self.stages, self.embeddings, self._now, settings.guidance_scale)
        self._batcher, self._room = Batcher(loaded.family), PassRoom()
        self._rows: dict[int, Row] = {}
        self._failed: list[RowFailed] = []
        self.tile_pixels = settings.tile_pixels
        apart_above = JOINED_TOKENS_MAX if loaded.family.pads_prompts else 0
        self.joined_tokens_max = None if loaded.family.pair == "joined" else apart_above
        self.joined_pixels_max = JOINED_PIXELS_MAX if self.stages.decodes_max == 1 else 0
        self._count: PeakCount | None = None  # while what a plan holds is counted
        self._laps: list[tuple[int, int]] = []
        self._state = StateBytes()  # of its rows after its steps

    @property
    def description(self) -> str:
        """For the start log."""
        return f"{type(self._family).__name__} in {str(self._loaded.dtype).removeprefix('torch.')}, {self.stages.where}"

    @property
    def held(self) -> int:
        """Rows whose state is kept."""
        return len(self._rows)

    @torch.inference_mode()
    def run(self, plan: DenoisePlan) -> Denoised:
        """Run one plan to its end. Raises InvariantError for a plan that does not fit the rows' state."""
        launched, spent, hits = self._clock(), Spent(), self.embeddings.hits
        self._failed, is_void = [], True
        try:
            for seq in plan.leave:
                self._rows.pop(seq, None)
            owned(self._rows.values())
            self._prepare(plan.new, spent)
            for new in plan.new:
                self._begin(new, spent)
            rows = self._rows_of(plan)
            self._lap()
            began = self._now()
            self._steps(plan, rows)
            spent.denoise_ns = self._now() - began
            self._lap(rows)
            began = self._now()
            decodes = self._decodes(rows)
            made = [RowMade(row.seq, things) for row in rows if (things := self._outputs(plan, row, decodes, spent))]
            spent.vae_decode_ns = self._now() - began - spent.save_ns
            self._lap()
            owned(self._rows.values())
            is_void = False
        finally:
            if is_void:
                for each in plan.rows:  # nobody names these rows again
                    self._rows.pop(each.seq, None)
            if not self._rows:
                self._batcher.forget()
        stages = StageTimes(
            spent.text_encode_ns,
            spent.vae_encode_ns,
            spent.denoise_ns,
            spent.vae_decode_ns,
            self.embeddings.hits - hits,
            spent.save_ns,
            spent.resume_ns,
            spent.image_hits,
            spent.image_encode_ns,
        )
        timing = StepTiming(launched, launched, self._now())
        return Denoised(timing, stages, tuple(made), tuple(self._failed), self.embeddings.bytes)

    def run_counted(self, plan: DenoisePlan) -> tuple[Denoised, StagePeaks]:
        """`run`, counting what its stages hold, here and in processes of their own."""
        self._laps, self._state = [], StateBytes()
        self.stages.watch()
        try:
            with counter_of(self._loaded.device) as self._count:
                done = self.run(plan)
        finally:
            self._count = None
            seen = self.stages.seen()
        here = peaks_of(self._laps, self._state, self._loaded.device)
        begin_bytes, decode_bytes = here.begin_bytes + seen.text + seen.encode, here.decode_bytes + seen.decode
        return done, msgspec.structs.replace(here, begin_bytes=begin_bytes, decode_bytes=decode_bytes)

    @property
    def encodes_max(self) -> int:
        """Pictures of requests that are encoded beside each other."""
        return self.stages.encodes_max

    @property
    def decodes_max(self) -> int:
        """Requests that are decoded beside each other."""
        return self.stages.decodes_max

    def stage_bytes(self) -> int:
        """What processes of stages hold before they work."""
        return self.stages.held_bytes()

    def device_memory(self) -> DeviceMemory | None:
        """Of an accelerator; None: it computes in the memory of its host."""
        return memory_of(self._loaded.device)

    def reserved(self) -> Reserved | None:
        """What the allocator of an accelerator has taken for this process; None: it computes on its host."""
        return reserved_of(self._loaded.device)

    def _lap(self, rows: Sequence[Row] = ()) -> None:
        if self._count is not None:
            self._laps.append(self._count.lap())
            self._state = state_of(rows) if rows else self._state

    def close(self) -> None:
        """End what the stages hold."""
        self.stages.close()

    @torch.inference_mode()
    def measure(self, shape: DenoiseShape, pictures: int) -> Ns:
        """Time of one forward pass of so many pictures, without guidance; the fastest of three after a first."""
        family, device = self._family, self._loaded.device
        size = Size(shape.height, shape.width, shape.frames)
        generator = torch.Generator().manual_seed(0)
        latents = family.pack(torch.cat([family.noise(size, generator) for _ in range(pictures)]).to(device))
        embedding = self.embeddings.get(family.empty_prompt, lambda prompt: self.stages.encode([prompt])[0])
        many = {name: tensor.expand(pictures, *tensor.shape[1:]) for name, tensor in embedding.items()}
        timesteps = self._beginner.solver(2, size, 0).timesteps[:1].expand(pictures)
        guidance = None if family.is_guided_by_pairs else torch.ones(pictures, device=device)
        took = []
        for _ in range(1 + _TRIES):
            began = self._now()
            family.forward(Work(latents, timesteps, many, size, guidance))
            took.append(self._now() - began)
        return min(took[1:])

    def _now(self) -> Ns:
        """The clock, once the device is done with what it was given."""
        if self._loaded.device.type == "cuda":
            torch.cuda.synchronize(self._loaded.device)
        return self._clock()

    def _prepare(self, news: Sequence[NewDenoise], spent: Spent) -> None:
        """Whatever is wrong with a prompt is told of its row, which is encoded by itself then."""
        with caught(_released):
            self._beginner.prepare(news, spent)

    def _begin(self, new: NewDenoise, spent: Spent) -> None:
        with caught(lambda error: self._fault(new.seq, new.request, error, "could not begin")):
            self._rows[new.seq] = self._beginner.row(new, spent)

    def _rows_of(self, plan: DenoisePlan) -> list[Row]:
        over = {failure.seq for failure in self._failed}
        rows = []
        for named in plan.rows:
            row = self._rows.get(named.seq)
            if row is None and named.seq in over:
                continue
            if row is None or row.done != named.start or named.total != row.request.steps:
                state = "unknown" if row is None else f"at step {row.done} of {row.request.steps}"
                raise InvariantError(
                    f"plan {plan.step} takes sequence {named.seq} from step {named.start} of {named.total}, which is "
                    f"{state}"
                )
            rows.append(row)
        return rows

    def _steps(self, plan: DenoisePlan, rows: Sequence[Row]) -> None:
        left = {named.seq: named.count for named in plan.rows}
        while running := [row for row in rows if left[row.seq] and row.seq in self._rows]:
            begun = [row for row in running if row.done >= row.request.skipped_steps]
            for row in running:
                left[row.seq] -= 1
                if row.done < row.request.skipped_steps:  # an edit begins further down
                    row.done += 1
            for group in alike(self._family, begun):
                self._advance(group, plan)

    def _advance(self, rows: Sequence[Row], plan: DenoisePlan) -> None:
        """One step of rows that share a forward pass; those that have no room together take several."""
        groups = self._room.groups(rows)
        if len(groups) > 1:
            for group in groups:
                self._advance(group, plan)
            return
        most = self._room.most(rows, plan.pictures_max)
        wrong: list[Exception] = []
        with caught(wrong.append):
            predictions = self._batcher.predict(rows, most)
        if wrong:
            self._batcher.forget()
            self._again(rows, plan, most, wrong.pop())
            return
        self._room.ran(rows, most)
        for row, error in self._batcher.step(rows, predictions, plan.show):
            self._fault(row.seq, row.request, error, "failed in a step")

    def _again(self, rows: Sequence[Row], plan: DenoisePlan, most: int | None, error: Exception) -> None:
        """A pass failed, and no row is further for it. Without room: smaller ones. Else each row alone shows whose
        fault it is."""
        if is_out_of_memory(error):
            error.__traceback__ = None  # which holds the failed pass's tensors
            release()
            if self._room.failed(rows, most):
                self._advance(rows, plan)
            else:
                self._fail(rows[0].seq, "out_of_memory", no_room(rows[0]))
        elif len(rows) > 1:
            for row in rows:
                self._advance([row], plan)
        else:
            self._fault(rows[0].seq, rows[0].request, error, "failed in a step")

    def _decodes(self, rows: Sequence[Row]) -> dict[int, Callable[[], Frames]]:
        """Begin the decodes of all rows that are complete."""
        complete = [row for row in rows if row.seq in self._rows and row.done == row.request.steps]
        return begin_decodes(complete, self._family, self.stages)

    def _outputs(
        self, plan: DenoisePlan, row: Row, decodes: dict[int, Callable[[], Frames]], spent: Spent
    ) -> tuple[Made, ...]:
        made: list[Made] = []
        if row.seq not in self._rows:
            return ()
        with caught(lambda error: self._fault(row.seq, row.request, error, "could not be decoded")):
            if row.seq in decodes:
                del self._rows[row.seq]
                read = read_by(self._family.readers, row)
                results = finished(row, decodes.pop(row.seq)(), read)  # frames are not held while others are decoded
                return (*handed_on(row, self._loaded), *results)
            if row.seq in plan.show and (shown := preview(row, self._family, self.stages)) is not None:
                made.append(shown)
        with caught(lambda error: self._fault(row.seq, row.request, error, "could not be saved")):
            if row.seq in plan.save and row.seq in self._rows:
                began = self._now()
                made.insert(0, Made("checkpoint", save(row, self._loaded.model_hash), steps=row.done))
                spent.save_ns += self._now() - began
        return tuple(made) if row.seq in self._rows else ()

    def _fault(self, seq: int, request: DiffusionRequest, error: Exception, what: str) -> None:
        self._fail(seq, *code_and_words(error, request, what))

    def _fail(self, seq: int, code: str, message: str) -> None:
        self._rows.pop(seq, None)
        self._failed.append(RowFailed(seq, code, message))
        release()


def _released(_error: Exception) -> None:
    release()
