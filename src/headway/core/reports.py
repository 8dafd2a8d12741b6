"""What a node tells others about itself. A reader sees only reports, with their age, never the node's live state."""

from typing import Literal

import msgspec

from headway.core.ids import NodeId
from headway.core.ledger import AccountView
from headway.core.units import Ns


class RateLimit(msgspec.Struct, frozen=True):
    """One limit of a tenant, as it stands."""

    limit: int
    remaining: int
    reset_ns: Ns  # until everything is there again


class RateLimits(msgspec.Struct, frozen=True):
    """What a tenant is told in `x-ratelimit-*` headers. None: no such limit."""

    requests: RateLimit | None = None
    tokens: RateLimit | None = None


class ShapeMoveFigures(msgspec.Struct, frozen=True):
    """How often replicas of a model changed their shape pool, since the start."""

    model: str
    outcome: Literal["moved", "failed"]  # failed: the sizes could not be prepared there, or the replica was lost
    count: int


class PoolFigures(msgspec.Struct, frozen=True):
    """What one pool of replicas has and should have."""

    model: str
    pool: str  # mixed, prefill, decode
    replicas: int
    wanted: int
    queued: int
    wait_s: float  # expected now
    predicted_s: float  # when a replica that starts now would serve
    wish: Literal["grow", "hold", "shrink"] = "hold"  # hold: `wanted` is only what serves; leave alone what starts


class KvEvents(msgspec.Struct, frozen=True):
    """What entered and left a replica's prefix index since the report before, as chained block hashes."""

    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    is_reset: bool = False  # forget what was known before: `stored` is everything, or what fitted


class PrefixFigures(msgspec.Struct, frozen=True):
    """How well a front knew what its replicas had cached, for one model. Counts since the start."""

    model: str
    dispatches: int = 0
    unhashed: int = 0  # of these: nobody hashed the prompt, so routing could not look at prefixes (AMD-AGI/Infera#143)
    predicted_tokens: int = 0  # over the first tokens whose replica told what it had cached
    reported_tokens: int = 0
    over_tokens: int = 0  # predicted beyond what was reported
    under_tokens: int = 0


class StepCoefficients(msgspec.Struct, frozen=True):
    """What a replica believes its steps cost, in ns (`cost.llm`)."""

    base_ns: float
    row_ns: float
    kv_ns: float
    token_ns: float
    pair_ns: float
    is_roofline: bool = False  # base + kv and row + token + pair overlap: the larger counts; else they add up


class DenoiseCoefficients(msgspec.Struct, frozen=True):
    """What a diffusion replica believes its work costs, in ns of the whole replica (`cost.diffusion` has the formulas).

    A forward pass of `rows` pictures of n tokens: base + token * rows * n + pair * rows * n^2, at least `floor`.
    """

    base_ns: float  # half a wave of tiles that is never full
    floor_ns: float  # launches and one read of the weights
    token_ns: float
    pair_ns: float
    patch: int = 16  # pixels of one latent token, each way
    frame_stride: int = 1  # frames of one latent frame, after the first
    text_tokens: int = 0  # of the prompt, in the sequence
    passes: int = 1  # per step, where a request does not say
    is_floor_hidden: bool = True  # behind the device, as a GPU's launches are; else it adds up, as on a CPU
    text_ns: float = 0.0  # text encoders, per prompt and pass
    text_shared_ns: float = 0.0  # of `text_ns`, what prompts that begin together take only once
    reference_ns: float = 0.0  # VAE encode, per reference token
    image_prompt_ns: float = 0.0  # image encoder of an IP-Adapter, per picture
    begin_ns: float = 0.0  # VAE encode of a picture to begin from, per pixel
    decode_ns: float = 0.0  # VAE decode, per pixel
    control_share: float = 0.0  # of a step, per ControlNet
    lora_share: float = 0.0  # of a step, per adapter that is not merged
    image_prompt_share: float = 0.0  # of a step, per picture that it attends to beside the words
    merge_ns: float = 0.0  # one rewrite of all weights; 0: adapters are not merged
    speedup: float = 1.0  # of the steps, by a step cache
    # Latent tokens up to which both passes of a guided step are one; beyond, each pays its own floor. None: always one.
    joined_tokens_max: int | None = None
    pictures_max: int | None = None  # of one forward pass; a request for more takes several. None: any
    devices: int = 1  # that the replica holds: GPU-seconds are seconds times these
    steps: int = 0  # that its model is made for; 0: not told
    error: float | None = None  # mean relative error of what was predicted lately; None: nothing measured yet
    save_ns: float = 0.0  # a checkpoint of one request, as measured lately over all shapes; 0: nothing measured yet
    resume_ns: float = 0.0  # and to begin from it
    interruption_error: float | None = None  # as `error`, of these two by shape
    first_ns: float = 0.0  # more of the first plan of a shape, which may compile; 0: nothing measured yet


class DenoiseMemory(msgspec.Struct, frozen=True):
    """What work of a diffusion replica holds of its memory beside the weights, in bytes (`cost.diffusion_memory` has
    the formulas): `base` whatever its size, and more for every token of its pictures, or pixel of their frames."""

    held_base: float  # from a request's first step to its last: latents, solver state, embeddings
    held_token: float  # per latent token
    step_base: float  # activations of one forward pass, while it runs
    step_token: float  # per token of each row
    decode_base: float  # the VAE, while it decodes
    decode_pixel: float  # of what it decodes at once
    room: int | None = None  # beside the weights; None: nobody knows, nothing is refused for it
    tile_pixels: int | None = None  # of a frame, most that the VAE decodes at once; None: whole frames
    pictures_max: int | None = None  # of one forward pass; a request for more takes several. None: any
    # Latent tokens of a pass up to which both passes of a guided step are one; beyond they run one after the other.
    # None: they are always one.
    joined_tokens_max: int | None = None
    decodes_max: int = 1  # requests of a batch that are decoded beside each other: processes of that stage
    encodes_max: int = 1  # whose pictures are encoded beside each other
    begin_base: float = 0.0  # of encoding a prompt
    begin_pixel: float = 0.0  # more, of a picture to begin from: the VAE's encoder
    # Of one tensor of latents: an edit of a part keeps its picture and noise of each that is made, and its mask.
    latent_token: float = 0.0
    held_step: float = 0.0  # per step of its schedule
    joined_pixels_max: int = 0  # of requests of a batch that are decoded in one pass; 0: each is by itself


class WarmShape(msgspec.Struct, frozen=True, gc=False):
    """Pictures or videos of this shape have run at a replica, in batches of up to so many."""

    height: int
    width: int
    frames: int
    batch: int
    save_ns: Ns = 0  # what a checkpoint of one took before it was ready; 0: not measured
    resume_ns: Ns = 0  # and to begin from it
    first_ns: Ns | None = None  # what its first run took beyond the later ones; None: not measured

    @property
    def words(self) -> str:
        """For people, sides as clients name them."""
        return f"{self.size_words} up to {self.batch}"

    @property
    def size_words(self) -> str:
        """The same without the batch."""
        return f"{self.width}x{self.height}" + (f", {self.frames} frames" if self.frames > 1 else "")


class DenoiseAbilities(msgspec.Struct, frozen=True):
    """What requests a diffusion replica can run, as its model was configured."""

    makes_videos: bool = False  # and no pictures
    edits: bool = False  # takes a picture to start from
    masks: bool = False  # and a mask
    image_prompts: bool = False
    negative_prompts: bool = True  # False: guidance is an input of the model, there is no second pass
    is_guided: bool = True  # a request that names no scale has one above 1
    chunks: bool = False  # of streaming sessions
    sizes: tuple[tuple[int, int], ...] = ()  # height and width of all that it makes; empty: any within what follows
    multiple: int = 1  # of each side, in pixels
    side_min: int = 1
    pixels_max: int = 1 << 62  # of one picture or frame
    frame_stride: int = 1  # a video has k * stride + 1 frames


class ShapePreparation(msgspec.Struct, frozen=True, gc=False):
    """A shape that a diffusion replica is to run, or runs, as work of its own (SPEC F8)."""

    height: int
    width: int
    frames: int
    batch: int  # pictures or videos of one pass
    state: Literal["queued", "running"]
    done: int  # of its slices: denoise steps, with encoding before the first and the decode after the last
    slices: int
    waiting: int  # requests that wait for it; 0: an operator asked, or they have gone


class PreparationFailure(msgspec.Struct, frozen=True, gc=False):
    """A shape that could not be prepared, told until it has run all the same (SPEC F8)."""

    height: int
    width: int
    frames: int
    batch: int
    error: str
    at_ns: Ns


class ReplicaReport(msgspec.Struct, frozen=True):
    """A WorkerNode's state; on change, at most every 20 ms, numbered."""

    replica: NodeId
    incarnation: int
    number: int
    at_ns: Ns
    role: str  # llm, upstream, diffusion, stage
    model: str
    waiting: int
    running: int
    waiting_prefill_tokens: int
    running_kv_tokens: int
    kv_blocks_free: int
    kv_blocks_total: int
    submits_seen: int  # Submits folded in; the front adds what it dispatched since
    step_ns: Ns = 0  # smoothed step time
    prefill_tokens_per_s: float = 0.0  # learned; 0: not yet
    draining: bool = False
    counters: tuple[tuple[str, int], ...] = ()  # monotonic: prefix hit and query tokens, preemptions, steps...
    accounts: tuple[AccountView, ...] = ()
    models: tuple[str, ...] = ()  # further names that it serves, adapters included
    source: Literal["engine", "scrape", "counted"] = "engine"  # exact; an upstream's metrics; only our own counts
    block_size: int = 0  # tokens per KV block; 0: unknown
    blocked_tokens: int = 0  # KV that the head of its queue needs and did not find free; 0: no head waits for blocks
    adapters: tuple[str, ...] = ()  # LoRA adapters that are loaded
    adapters_max: int = 0  # how many fit; 0: unknown or none
    host: str = ""  # machine, for the topology penalty
    step_cost: StepCoefficients | None = None
    kv_events: KvEvents | None = None  # None: this replica does not tell
    denoise_cost: DenoiseCoefficients | None = None  # of a diffusion replica
    queued_work_ns: Ns = 0  # of a diffusion replica: until all that it holds is done
    pixels: tuple[int, int | None] = (0, None)  # fewest and most of a request, all frames, that it takes; None: any
    denoise_memory: DenoiseMemory | None = None  # of a diffusion replica that tells what its work holds
    warm: tuple[WarmShape, ...] | None = None  # of a diffusion replica: what has run there; None: not told
    refuses_new: bool = False  # of a diffusion replica: it takes no shape that is not warm
    abilities: DenoiseAbilities | None = None  # of a diffusion replica; None: not told
    preparing: tuple[ShapePreparation, ...] = ()  # of a diffusion replica: what runs or is to run before it is asked
    unprepared: tuple[PreparationFailure, ...] = ()  # of a diffusion replica: what of that failed


class AdmissionFigures(msgspec.Struct, frozen=True):
    """How well admission's predictions for one model have held lately (A7). None: nothing to judge by yet."""

    model: str
    quantile: float  # at which it predicts now
    coverage: tuple[tuple[str, float | None], ...]  # per promise (ttft, tpot, e2e): share that came within the bound
    false_rejects: (
        float | None
    )  # share of the refused that would have kept their SLO, by the sample that ran all the same
    shadows: int = 0  # of that sample, ever


class GarbageFigures(msgspec.Struct, frozen=True):
    """Pauses of a process by its garbage collector, since it was ready."""

    young: int = 0  # collections of what is new
    young_ns: Ns = 0
    full: int = 0  # of everything
    full_ns: Ns = 0
    longest_ns: Ns = 0


class ReplicaFigures(msgspec.Struct, frozen=True):
    """One replica as a gateway sees it, for operators and metrics."""

    replica: NodeId
    state: Literal["loading", "ready", "draining", "lost"]
    models: tuple[str, ...] = ()
    incarnation: int = 0
    is_up: bool = True  # by its health checks
    breaker: Literal["closed", "open", "half_open"] = "closed"
    in_flight: int = 0  # of this gateway
    waiting: int = 0  # there, as far as known
    running: int = 0
    source: str = "counted"
    age_ns: Ns | None = None  # of what is known
    is_drained: bool = False  # an operator asked for it
    reason: str | None = None  # why it is lost, or what it does while it loads
    garbage: GarbageFigures | None = None  # of a replica of this server, once it told
    settle_passes: int | None = None  # the same: repeated until its allocator took nothing new; 0: it has no such one
    reserved_bytes: int | None = None  # that the allocator held then
    memory_room_bytes: int | None = None  # of a diffusion replica, beside its weights; None: not told
    memory_used_bytes: int | None = None  # of that, by what it runs now
    warm: tuple[WarmShape, ...] | None = None  # of a diffusion replica: what has run there; None: not told
    save_ns: Ns | None = None  # of a diffusion replica, of one request: what a checkpoint takes lately
    resume_ns: Ns | None = None  # and to begin from one; None: not measured yet
    interruption_error: float | None = None  # mean relative error of what was predicted of these two
    preparing: tuple[ShapePreparation, ...] = ()  # of a diffusion replica: shapes that it runs as work of its own
    unprepared: tuple[PreparationFailure, ...] = ()  # of these, what failed
