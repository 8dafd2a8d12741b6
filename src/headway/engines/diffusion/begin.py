"""Makes the row of a new request: checks it, encodes prompt and pictures, draws its noise, or reads its checkpoint."""

from collections.abc import Callable, Sequence

import msgspec
import torch
from safetensors import SafetensorError

from headway.core.artifacts import BAD_INPUT
from headway.core.errors import RequestError
from headway.core.plans import NewDenoise
from headway.core.request import DiffusionRequest
from headway.core.units import Ns
from headway.engines.diffusion.embeddings import EmbeddingCache
from headway.engines.diffusion.encodes import Encodes, Encoding, size_of
from headway.engines.diffusion.families.protocol import Embedding, Size, TakesMasks, TakesPictures
from headway.engines.diffusion.handed_on import check_chunk, given_to
from headway.engines.diffusion.image_prompts import ImagePrompts
from headway.engines.diffusion.loading import Loaded
from headway.engines.diffusion.pictures import open_mask
from headway.engines.diffusion.rows import BadCheckpoint, Edit, Row, read
from headway.engines.diffusion.solver import Solver
from headway.engines.diffusion.stages import Stages


class Spent(msgspec.Struct):
    """Time of the stages of one plan, as it adds up."""

    text_encode_ns: Ns = 0
    vae_encode_ns: Ns = 0
    denoise_ns: Ns = 0
    vae_decode_ns: Ns = 0
    save_ns: Ns = 0
    resume_ns: Ns = 0
    image_hits: int = 0
    image_encode_ns: Ns = 0


class Beginner:
    """Makes rows. `guidance_scale`: of a request that names none; None: the family's."""

    def __init__(
        self,
        loaded: Loaded,
        stages: Stages,
        cache: EmbeddingCache,
        clock: Callable[[], Ns],
        guidance_scale: float | None,
    ) -> None:
        self._loaded, self._family, self._stages = loaded, loaded.family, stages
        self._cache, self._clock = cache, clock
        self._encodes = Encodes(loaded.family, stages, self._check)
        self.images = ImagePrompts(loaded.family, loaded.image_hash, cache)
        self._together: dict[str, Embedding] = {}  # of the rows that begin now, also where the cache keeps nothing
        self._prepared: dict[str, Embedding] = {}  # those of them that no row has used
        self._guidance_scale = loaded.family.guidance_scale if guidance_scale is None else guidance_scale

    def prepare(self, news: Sequence[NewDenoise], spent: Spent) -> None:
        """Encode in one call what rows that begin together need; deterministic ones are encoded alone."""
        began = self._clock()
        self._encodes.expect(news)
        wanted: dict[str, None] = {}  # a set in order
        for request in (new.request for new in news):
            if not request.begun and not request.deterministic:
                scale = request.guidance_scale or self._guidance_scale
                wanted.update(dict.fromkeys(self._prompts(request, scale)))
        missing = [prompt for prompt in wanted if not self._cache.has(prompt, in_company=True)]
        self._together, self._prepared = {}, {}  # what rows that failed have left goes, whatever happens now
        if len(missing) > 1:
            self._together = dict(zip(missing, self._stages.encode(missing), strict=True))
            for prompt, embedding in self._together.items():
                self._cache.put(prompt, embedding, in_company=True)
        self._prepared = dict(self._together)
        spent.text_encode_ns += self._clock() - began

    def row(self, new: NewDenoise, spent: Spent) -> Row:
        """The row of a request. Raises RequestError for what it cannot have, BadCheckpoint."""
        request, family, size = new.request, self._family, size_of(new.request)
        self._check(request, size)
        given = given_to(request, size, self._loaded)
        scale = request.guidance_scale or self._guidance_scale
        began = self._clock()
        solver = self.solver(request.steps, size, request.skipped_steps)
        if request.begun:
            try:
                row = self._resumed(new, size, solver, scale)
                row.given = given
            except (SafetensorError, KeyError, TypeError) as error:  # cut off, or something is missing in it
                raise BadCheckpoint(f"unreadable ({type(error).__name__}: {error})") from error
            spent.resume_ns += self._clock() - began
            return row
        began = self._clock()
        positive, negative = self._embeddings(request, scale)
        if request.image_prompts:
            positive, negative = self._beside(request, (positive, negative), spent)
        spent.text_encode_ns += self._clock() - began
        row = Row(new.seq, request, size, torch.empty(0), solver, positive, negative, scale, given=given)
        if request.content.pictures:
            began = self._clock()
            self._edit(row, self._encodes.of(new))
            spent.vae_encode_ns += self._clock() - began
        else:
            generators = [torch.Generator().manual_seed(request.seed + k) for k in range(request.n)]
            grid = torch.cat([family.noise(size, generator) for generator in generators])
            row.latents = solver.start(family.pack(grid.to(self._loaded.device)))
        return row

    def _resumed(self, new: NewDenoise, size: Size, solver: Solver, scale: float) -> Row:
        saved = read(new.request, self._loaded.model_hash, self._loaded.device)
        solver.restore(saved.plain, saved.group("solver."))
        edit = saved.group("edit.")
        return Row(
            new.seq,
            new.request,
            size,
            saved.tensors["latents"],
            solver,
            saved.group("positive."),
            saved.group("negative.") or None,
            scale if saved.guidance_scale is None else saved.guidance_scale,
            saved.done,
            Edit(edit["clean"], edit["noise"], edit["mask"]) if edit else None,
        )

    def solver(self, steps: int, size: Size, skipped: int) -> Solver:
        """A scheduler of its own for one request."""
        model = self._loaded.pipeline.scheduler
        scheduler = type(model).from_config(model.config)
        self._family.set_timesteps(scheduler, steps, size)
        return Solver(scheduler, skipped)

    def _embeddings(self, request: DiffusionRequest, scale: float) -> tuple[Embedding, Embedding | None]:
        found = [self._embedding(prompt, not request.deterministic) for prompt in self._prompts(request, scale)]
        return found[0], found[1] if len(found) > 1 else None

    def _beside(
        self, request: DiffusionRequest, words: tuple[Embedding, Embedding | None], spent: Spent
    ) -> tuple[Embedding, Embedding | None]:
        """With the image prompt."""
        began, hits = self._clock(), self.images.hits
        found = self.images.beside(request, *words)
        spent.image_encode_ns += self._clock() - began
        spent.image_hits += self.images.hits - hits
        return found

    def _embedding(self, prompt: str, in_company: bool) -> Embedding:
        together = self._together if in_company else {}
        if in_company and prompt in self._prepared:
            return self._prepared.pop(prompt)
        return self._cache.get(
            prompt,
            lambda prompt: together[prompt] if prompt in together else self._stages.encode([prompt])[0],
            in_company,
        )

    def _prompts(self, request: DiffusionRequest, scale: float) -> list[str]:
        """What is encoded for a request: its prompt, and what guides away from another."""
        said = request.content
        if scale <= 1.0 or not self._family.is_guided_by_pairs:
            return [said.prompt]
        return [said.prompt, said.negative_prompt or self._family.empty_prompt]

    def _edit(self, row: Row, picture: Encoding) -> None:
        """Begin from a picture, at the noise level that the strength says; keep what a mask needs."""
        request, family, device = row.request, self._family, self._loaded.device
        image = picture.wait()
        # After the encoder's: the order of draws is the pipeline's.
        noises = torch.cat([family.noise(row.size, generator).to(device) for generator in picture.generators])
        row.latents = family.pack(row.solver.mixed(image, noises, request.skipped_steps))
        if request.content.mask is not None and isinstance(family, TakesMasks):
            mask = family.encode_mask(open_mask(request.content.mask, picture.sides), row.size)
            packed = family.pack(mask).expand(request.n, -1, -1)
            row.edit = Edit(family.pack(image), family.pack(noises), packed)

    def _check(self, request: DiffusionRequest, size: Size) -> None:
        family, said = self._family, request.content
        why = family.check(size)
        if why is not None:
            raise RequestError(why, code=BAD_INPUT)
        check_chunk(request, family)
        for wrong, words in (
            (size.frames > 1 and not family.makes_videos, "this model makes pictures, no videos"),
            (said.form == "mp4" and not family.makes_videos, "this model makes pictures, no videos"),
            (said.form != "mp4" and size.frames > 1, f"{size.frames} frames are a video, made as mp4, not {said.form}"),
            (said.form == "mp4" and request.fps < 1, f"a video at {request.fps} frames per second; at least 1"),
            (said.form not in ("png", "jpeg", "webp", "mp4"), f"no such form of an answer: {said.form!r}"),
            (bool(said.pictures) and not isinstance(family, TakesPictures), "this model takes no pictures"),
            (len(said.pictures) > 1, f"{len(said.pictures)} pictures; this model edits one and takes no references"),
            (said.mask is not None and not isinstance(family, TakesMasks), "this model takes no masks"),
            (said.mask is not None and not said.pictures, "a mask without the picture that it is of"),
            (not said.pictures and request.strength < 1.0, f"strength {request.strength} without a picture"),
            (request.skipped_steps >= request.steps, f"strength {request.strength} leaves no step of {request.steps}"),
            (bool(request.loras), "adapters are not served by this engine"),
            (bool(request.control_nets), "control nets are not served"),
            (request.solver not in ("", self._solver), f"solver {request.solver!r}; this model's is {self._solver}"),
            (
                request.dtype not in ("", self._dtype),
                f"dtype {request.dtype!r}; this model was loaded as {self._dtype}",
            ),
        ):
            if wrong:
                raise RequestError(words, code=BAD_INPUT)
        self.images.check(request)
        scale = request.guidance_scale or self._guidance_scale
        if said.negative_prompt and not (family.is_guided_by_pairs and scale > 1.0):
            needs = "guidance_scale above 1" if family.is_guided_by_pairs else "a model that is not guidance-distilled"
            raise RequestError(f"a negative prompt needs {needs}; guidance_scale is {scale}", code=BAD_INPUT)

    @property
    def _solver(self) -> str:
        return type(self._loaded.pipeline.scheduler).__name__

    @property
    def _dtype(self) -> str:
        return str(self._loaded.dtype).removeprefix("torch.")
