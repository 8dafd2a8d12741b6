"""What the gateway needs of the system behind it. `live` implements `Serving`; tests use a fake one."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from headway.adapters.gateway.relay.ports import RelayModel
from headway.core.decisions import Explanation
from headway.core.effects import Admitted, Deliver, End, Show
from headway.core.evidence import EvidenceRecord
from headway.core.ids import NodeId, RequestId, TenantId
from headway.core.ledger import AccountView
from headway.core.reports import (
    AdmissionFigures,
    PoolFigures,
    PrefixFigures,
    RateLimits,
    ReplicaFigures,
    ReplicaReport,
    ShapeMoveFigures,
)
from headway.core.request import DenoiseShape, DiffusionRequest, LlmRequest, Request
from headway.core.units import Ns

TraceShape = Literal["chrome", "jsonl", "steps"]
Modality = Literal["text", "image", "video"]
RecordSink = Callable[[EvidenceRecord], None]


class PictureCard(msgspec.Struct, frozen=True):
    """What a diffusion model makes. Sides are in pixels and multiples of `multiple`, the size of one latent token."""

    size: str  # of a request that names none: WxH
    sizes: tuple[str, ...] = ()  # all that are served; empty: any within the limits below
    multiple: int = 8
    side_min: int = 64
    pixels_max: int = 1 << 20  # of one picture or frame
    steps: int = 20  # of a request that names none
    steps_max: int = 200
    guidance_scale: float = 0.0  # of a request that names none; 0: the model's own
    passes: int = 2  # forward passes of a step that is guided (scale above 1); 1: guidance is an input of the model
    edits: bool = False  # takes a picture to start from
    masks: bool = False  # and a mask
    image_prompt_scale: float | None = None  # of a request that names none; None: it takes no image prompts
    text_tokens: int = 0  # that the model attends to per prompt
    fps: int = 0  # of a video; 0: makes pictures
    seconds: tuple[int, ...] = (4, 8, 12)  # of a video; the first is that of a request that names none
    frame_stride: int = 1  # frames of one latent frame after the first: a video has k * stride + 1 of them
    context_frames: int = 0  # that a chunk of a streaming session goes on from; 0: whole videos only
    chunk_frames: int = 0  # new ones of each chunk; of the first one, rounded up as those of a video


class ModelCard(msgspec.Struct, frozen=True):
    """A model as clients see it, and what the edge must know to prepare requests for it."""

    id: str
    modalities: tuple[Modality, ...]
    max_model_len: int
    created: int  # Unix seconds
    block_size: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    root: str | None = None
    parent: str | None = None
    pictures: PictureCard | None = None  # of a diffusion model


class NamedModel(msgspec.Struct, frozen=True):
    """A further name that clients may use: a model of an upstream, a LoRA adapter, an alias."""

    id: str
    root: str  # the model behind it
    parent: str | None = None  # of an adapter
    created: int = 0  # Unix seconds


class Estimate(msgspec.Struct, frozen=True):
    """What one sequence is predicted to need. `verdict` is what admission would answer now."""

    ttft_ns: Ns
    tpot_ns: Ns
    device_seconds: float
    kv_bytes: int
    verdict: str
    output_tokens: int  # that all of this is predicted for
    device_seconds_max: float  # with as many output tokens as its limit lets through


class PictureEstimate(msgspec.Struct, frozen=True):
    """What a diffusion request is predicted to need, all its pictures together. `wait_s`: until it begins."""

    stages: dict[str, float]  # device seconds, by stage
    gpu_seconds: float
    wait_s: float
    verdict: str
    degraded: dict[str, int | str] = {}  # with what is taken away; msgspec copies the default
    memory_bytes: int | None = None  # beside the weights, at its peak; None: its replica does not tell
    unservable: str | None = None  # why no replica can ever run it
    cold_s: float = 0.0  # of `gpu_seconds`, what the first run of its shape takes there beyond its stages
    is_cold: bool = False  # no request of its shape has run there

    @property
    def work_s(self) -> float:
        """Of all its stages: above `limits.sync_s` no open connection waits for it."""
        return sum(self.stages.values())

    @property
    def eta_s(self) -> float:
        """Until it is done."""
        return self.wait_s + self.cold_s + self.work_s


# Predicts; None while no replica has told what its work costs. Raises CapacityError when the model has no replica.
Foresee = Callable[[DiffusionRequest], PictureEstimate | None]


class Stats(msgspec.Struct, frozen=True):
    """Live numbers for /metrics and /load, read at every scrape."""

    reports: tuple[ReplicaReport, ...] = ()  # the last one of each replica
    waiting: int = 0  # in the FrontNode's queue
    in_flight: int = 0  # requests that the FrontNode owns
    admissions: tuple[tuple[str, int], ...] = ()  # verdict -> how often, since start
    exports_lost: tuple[tuple[str, int], ...] = ()  # sink of evidence -> records that it lost
    prefixes: tuple[PrefixFigures, ...] = ()
    predictions: tuple[AdmissionFigures, ...] = ()  # how admission's have held, per model
    recoveries: tuple[tuple[str, int], ...] = ()  # what failed and how that was met -> how often, since start
    replicas: tuple[ReplicaFigures, ...] = ()
    pools: tuple[PoolFigures, ...] = ()  # what each should have
    shape_moves: tuple[ShapeMoveFigures, ...] = ()  # of replicas between shape pools, since start
    jobs: tuple[tuple[str, int], ...] = ()  # rows of the job table by state, as of a moment ago
    held: tuple[str, ...] = ()  # models whose queue of jobs is paused; `*`: all
    degraded: tuple[str, ...] = ()  # what beside the models does not answer, a few words each
    webhooks: tuple[tuple[str, int], ...] = ()  # what came of an attempt to deliver one -> how often, since start


class Starting(msgspec.Struct, frozen=True):
    """A model of our own engines whose first replica is not ready yet, and what that one does."""

    id: str
    modalities: tuple[str, ...]
    doing: str


class TokenStream(Protocol):
    """The answer of one sequence: Admitted if it was degraded, Delivers without gap, then exactly one End."""

    async def next(self) -> Sequence[Deliver | Show | Admitted | End]:
        """Everything that is ready; waits for at least one item. Not called again after the End. Raises what a listener
        raised."""
        ...

    def listen(self, take: Callable[[Deliver], bool]) -> None:
        """Offer each Deliver to `take` first, while `next` waits and nothing is ready; what it takes (True) is done
        with."""
        ...


class Directory(Protocol):
    """Names that clients may use beside those of the models of our own engines."""

    def named(self) -> Sequence[NamedModel]:
        """What else can be asked for: relayed models, adapters, aliases."""
        ...

    def answering(self, name: str) -> str:
        """The model that answers to a name now: itself, what it is an alias of, or a fallback."""
        ...

    def model(self, name: str, /) -> RelayModel | None:
        """How `name` is relayed; None when our own engines answer to it, or nobody."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether every relayed model can be served now, and why not."""
        ...


class OwnModels:
    """A directory without other names."""

    def named(self) -> Sequence[NamedModel]:
        """None."""
        return ()

    def answering(self, name: str) -> str:
        """Everybody answers for himself."""
        return name

    def model(self, _name: str, /) -> RelayModel | None:
        """Nothing is relayed."""
        return None

    def ready(self) -> tuple[bool, str]:
        """Nothing is missing."""
        return True, "ready"


class Serving(Protocol):
    """The system behind the gateway. Called from the event loop only; no call blocks."""

    drain: Callable[[NodeId, bool], None]  # take a replica out, or bring it back
    warm: Callable[[NodeId, tuple[DenoiseShape, ...]], None]  # have a replica run these while it has time
    explain: Callable[[Request], Explanation]  # where a request would go now, and whether it would be let in
    foresee: Foresee
    starting: Callable[[], Sequence[Starting]]  # models of our own engines that have not been ready yet

    def now_ns(self) -> Ns:
        """The run's clock."""
        ...

    def submit(self, request: Request, received_ns: Ns, body_ns: Ns) -> TokenStream:
        """Hand over a request. A refusal comes as the stream's End, with its error."""
        ...

    def cancel(self, request: RequestId) -> None:
        """The client left. The stream still ends with an End. Unknown or ended requests: nothing happens."""
        ...

    def text_stopped(self, request: RequestId, index: int) -> None:
        """A stop string was found: the text ends inside token `index` (0-based). The End says `stop`."""
        ...

    def closed(self, request: RequestId, first_token_ns: Ns | None, input_bytes: int, *, stored_ns: Ns = 0) -> None:
        """The last byte of the answer was handed to the transport. Called exactly once per submitted request.
        `stored_ns`: how long its outputs took to be stored, after its End."""
        ...

    def models(self) -> Sequence[ModelCard]:
        """Every model that has been ready, in the order of the configuration."""
        ...

    @property
    def directory(self) -> Directory:
        """Names beside those of the models."""
        ...

    def accounts(self) -> Sequence[tuple[AccountView, float]]:
        """Every account of every node with the age of the view in ms."""
        ...

    def rate_limits(self, tenant: TenantId) -> RateLimits:
        """What is left of the tenant's quota."""
        ...

    def evidence(self, request: RequestId) -> EvidenceRecord | None:
        """The record of an ended request, while it is kept."""
        ...

    def on_record(self, sink: RecordSink) -> None:
        """Call `sink` with every EvidenceRecord from now on."""
        ...

    def stats(self) -> Stats:
        """Live numbers for /metrics."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether requests for every model can be served now, and why not."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget every unreferenced cached block on every replica; False when one did not."""
        ...

    def estimate(self, request: LlmRequest) -> Estimate:
        """Predict one sequence on the replicas as they are now."""
        ...

    async def trace(self, seconds: float, shape: TraceShape) -> bytes:
        """The last `seconds`: a Chrome/Perfetto trace of steps, requests and decisions; evidence or steps as lines."""
        ...
