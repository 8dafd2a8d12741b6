"""What a client asked for, after validation: sampling, SLO as absolute deadlines, and the request itself."""

from enum import StrEnum

import msgspec

from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.units import Ns


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are chosen. Ranges are checked at the edge (`adapters/gateway`); the engine trusts them."""

    max_tokens: int
    temperature: float = 1.0  # 0: greedy, ties to the lowest id
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0  # minted per request at the edge when the client gave none
    logprobs: int | None = None  # None: none; k: the chosen token's and the k best
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all


class Slo(msgspec.Struct, frozen=True):
    """The SLO of one request, fixed at arrival (SPEC L-4). Deadlines are absolute; None means no promise."""

    ttft_deadline_ns: Ns | None = None
    tpot_ns: Ns | None = None
    e2e_deadline_ns: Ns | None = None


class TraceContext(msgspec.Struct, frozen=True):
    """The span of one request in its client's trace (W3C trace context). Nothing is decided by it."""

    trace_id: str
    span_id: str
    parent_id: str | None  # None: the trace begins with this span
    is_sampled: bool
    operation: str  # `gen_ai.operation.name`: chat, text_completion


class LlmRequest(msgspec.Struct, frozen=True, tag=True):
    """One token sequence to generate. A client's `n=2` or list of prompts becomes several of these."""

    id: RequestId
    tenant: TenantId
    model: ModelId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    arrived_ns: Ns
    slo: Slo = Slo()
    urgency: int = 0  # higher is sooner; `-priority` of the wire
    block_hashes: tuple[bytes, ...] = ()  # chained, one per full prompt block of `block_size` (core.blockhash)
    cache_root: bytes = b""  # root of that chain: model, LoRA, tenant salt, media
    output_tokens_predicted: int | None = None  # by quantile (A3); None: unknown
    tenant_weight: int = 1
    prompt_logprobs: bool = False
    attempts: int = 0  # of the router; part of every keyed draw
    trace: TraceContext | None = None
    block_tokens: int = 0  # prompt tokens per entry of `block_hashes`; 0: nobody hashed it
    session: str | None = None  # the client's `session_id`: what affinity binds
    lora: str | None = None  # adapter
    allow_degrade: tuple[str, ...] = ()  # what admission may take away to keep a deadline (CONTRACT)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt)

    @property
    def max_tokens(self) -> int:
        """Output tokens at most."""
        return self.sampling.max_tokens

    @property
    def ignores_eos(self) -> bool:
        """The output is as long as its limit."""
        return self.sampling.ignore_eos


class TextRequest(msgspec.Struct, frozen=True, tag=True):
    """A request whose body is relayed to an upstream server: nobody here tokenizes it, its tokens are estimates."""

    id: RequestId
    tenant: TenantId
    model: ModelId
    prompt_tokens: int  # bytes of the conversation over the model's learned bytes per token
    max_tokens: int  # the client's limit, else the model's default
    arrived_ns: Ns
    slo: Slo = Slo()
    urgency: int = 0
    block_hashes: tuple[bytes, ...] = ()  # chained over the text of the whole conversation
    block_tokens: int = 0  # tokens that one of them is taken to stand for
    output_tokens_predicted: int | None = None
    tenant_weight: int = 1
    attempts: int = 0
    trace: TraceContext | None = None
    session: str | None = None
    lora: str | None = None
    allow_degrade: tuple[str, ...] = ()
    ignores_eos: bool = False
    is_stream: bool = False
    is_idempotent: bool = False  # temperature 0 or a seed: run twice, it says the same, so that it may be hedged


class DenoiseShape(msgspec.Struct, frozen=True):
    """What decides the time of one forward pass of a denoiser, beside the model."""

    height: int
    width: int
    frames: int = 1
    passes: int = 0  # forward passes per step and picture: 2 with classifier-free guidance; 0: the model's
    reference_tokens: int = 0  # of reference pictures, in the sequence (edit, image to image by tokens)
    control_nets: int = 0
    image_prompts: int = 0  # pictures that an IP-Adapter encodes
    loras: int = 0  # adapters that are not merged

    @property
    def pixels(self) -> int:
        """Of all frames."""
        return self.height * self.width * self.frames


class LoraUse(msgspec.Struct, frozen=True):
    """One adapter of a request; scale 0 keeps it resident without effect."""

    id: str
    scale: float = 1.0


class Content(msgspec.Struct, frozen=True):
    """What a diffusion request says and shows. Only the edge and the engine look into it, never the ring."""

    prompt: str = ""
    negative_prompt: str = ""
    pictures: tuple[bytes, ...] = ()  # encoded, as the client sent them: the first is edited, the others are references
    mask: bytes | None = None  # a PNG whose transparent part is edited
    form: str = "png"  # of the answer: png, jpeg, webp; mp4 for a video
    quality: int = 100  # of a lossy form, 0 to 100
    previews: int = 0  # unfinished pictures on the way, spread over the steps
    given: bytes = b""  # latents of the frames that a chunk goes on from, as an engine made them ("latents")
    image_prompts: tuple[bytes, ...] = ()  # encoded, as the client sent them: shown to an IP-Adapter beside the words

    @property
    def brought_bytes(self) -> int:
        """Of pictures and latents that came with it."""
        pictures = (*self.pictures, *self.image_prompts)
        return sum(len(picture) for picture in pictures) + len(self.mask or b"") + len(self.given)


class DiffusionRequest(msgspec.Struct, frozen=True, tag=True):
    """Pictures or one video to denoise. All that decides its duration is known on arrival (SPEC F2)."""

    id: RequestId
    tenant: TenantId
    model: ModelId
    steps: int  # `num_inference_steps`
    height: int
    width: int
    seed: int
    arrived_ns: Ns
    slo: Slo = Slo()
    urgency: int = 0
    frames: int = 1  # of a chunk of a streaming session (SPEC H5): those that are given are among them
    given_frames: int = 0  # the first of `frames`, which are not made or shown: `content.given` holds their latents
    hand_on: int = 0  # last frames whose latents come back beside the video, for the next chunk; 0: none
    fps: int = 0  # of a video
    guidance_scale: float = 0.0  # 0: the model's
    passes: int = 0  # forward passes per step: 2 where a second, unconditional one guides; 0: the model's
    n: int = 1  # pictures of the one prompt; picture k uses seed + k
    reference_tokens: int = 0
    strength: float = 1.0
    loras: tuple[LoraUse, ...] = ()
    control_nets: tuple[str, ...] = ()
    image_prompts: int = 0
    image_prompt_scale: float = 1.0  # how much they count beside the words; 0 changes nothing
    solver: str = ""  # empty: the model's
    quality: str = ""
    dtype: str = ""
    deterministic: bool = False  # in a batch of its own: batches change the last bits
    content: Content = Content()
    begun: int = 0  # steps that were done before, elsewhere; `checkpoint` holds what they left
    checkpoint: bytes = b""
    save_every: int = 0  # steps between checkpoints that the front is sent; 0: none
    tenant_weight: int = 1
    allow_degrade: tuple[str, ...] = ()
    trace: TraceContext | None = None
    played_ns: Ns | None = None  # when its chunk is played (SPEC H5): that orders it, and ends nothing where it is late

    @property
    def wanted_ns(self) -> Ns | None:
        """By when it is wanted: the sooner of its end-to-end deadline and its playback. None: nobody says."""
        due_ns = self.slo.e2e_deadline_ns
        if due_ns is None or self.played_ns is None:
            return self.played_ns if due_ns is None else due_ns
        return min(due_ns, self.played_ns)

    @property
    def shape(self) -> DenoiseShape:
        """What a forward pass of one of its pictures computes."""
        return DenoiseShape(
            self.height,
            self.width,
            self.frames,
            self.passes,
            self.reference_tokens,
            len(self.control_nets),
            self.image_prompts,
            len(self.loras),
        )

    @property
    def is_chunk(self) -> bool:
        """Of a streaming session: another one comes before or after it, made by the same model."""
        return self.given_frames > 0 or self.hand_on > 0

    @property
    def chunk_fault(self) -> str | None:
        """Why it cannot be a chunk of a streaming session, in words; None: it can, or it is none."""
        given, frames, said = self.given_frames, self.frames, self.content
        if not 0 <= given < frames:
            return f"given_frames is {given} of {frames} frames; give at least 0 and fewer than there are"
        if bool(said.given) is not bool(given):
            return f"given_frames is {given} and {len(said.given)} bytes of latents came; send both or neither"
        if not 0 <= self.hand_on <= frames:
            return f"hand_on is {self.hand_on} of {frames} frames; ask for at least 0 and at most all"
        if given and said.pictures:
            return f"{given} frames are given and a picture too; a chunk goes on from frames alone"
        return None

    @property
    def skipped_steps(self) -> int:
        """First steps that an edit does not run, because it begins from a picture: its steps are counted with them."""
        if self.strength >= 1.0:
            return 0
        return int(max(self.steps - min(self.steps * self.strength, self.steps), 0))

    @property
    def preview_steps(self) -> tuple[int, ...]:
        """Steps after which it is shown unfinished: preview k after the k-th of them, however often it is resumed."""
        count = self.content.previews + 1
        return tuple(sorted({self.steps * place // count for place in range(1, count)} - {0, self.steps}))


LanguageRequest = LlmRequest | TextRequest
Request = LlmRequest | TextRequest | DiffusionRequest


class FinishReason(StrEnum):
    """Why a request ended, as nodes say it; the edge maps it to OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    REJECTED = "rejected"
    LOST = "lost"
