"""What the gateway needs of the durable side: jobs, kept pictures, answers by idempotency key, and usage.

`live` implements these over the job table and the object store; tests use fakes. Every coroutine may be cancelled at
any await: what was begun is then done wholly or not at all. `tenant` None sees and may do everything (an admin key).
Faults of the caller are RequestErrors; CapacityError where the table or the store does not answer.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from headway.adapters.gateway.queue_ports import Queue
from headway.core.artifacts import PromptRead
from headway.core.evidence import EvidenceRecord
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import DiffusionRequest

JobKind = Literal["image", "video"]
JobStatus = Literal["queued", "in_progress", "completed", "failed"]  # what clients see (CONTRACT, Jobs)
OutputKind = Literal["picture", "video", "thumbnail", "spritesheet", "preview"]
Order = Literal["asc", "desc"]


class JobError(msgspec.Struct, frozen=True):
    """Why a job failed: `cancelled`, `expired`, `lost`, or the code of the engine or of admission."""

    code: str
    message: str


class Output(msgspec.Struct, frozen=True):
    """One object of a job. `index`: the picture of n, or the number of the preview."""

    kind: OutputKind
    media_type: str  # image/png, video/mp4
    index: int = 0
    size: int = 0  # bytes
    seed: int | None = None
    read: PromptRead | None = None  # how its words were read; None: not told


class JobView(msgspec.Struct, frozen=True):
    """A job as it stands. `state` is the internal one; clients see `status`."""

    id: str
    kind: JobKind
    tenant: TenantId
    model: ModelId
    state: str
    status: JobStatus
    progress: int  # 0 to 100, by steps alone; 100 only when completed
    created_at: int  # Unix seconds, as all of these
    completed_at: int | None = None  # also of a failed one
    expires_at: int | None = None  # its objects are deleted then; None until it is over
    error: JobError | None = None
    echo: bytes = b"{}"  # as given to `create`
    eta_s: float | None = None  # until it is completed, by the estimates of what runs and waits before it
    outputs: tuple[Output, ...] = ()
    gpu_seconds: float | None = None  # None: not over, or not measured
    is_paused: bool = False
    attempts: int = 0  # begun so far
    degraded: dict[str, int | str] = {}  # what admission took away, and what is left; msgspec copies the default
    restarts: int = 0  # times that it began anew, because its checkpoint could not be used
    restart_reason: str | None = None  # of the last one
    is_held: bool = False  # the queue of its model is paused
    done: int = 0  # denoise steps, of `steps`; it never falls, unless the job begins anew
    steps: int = 0  # 0: not told

    @property
    def read(self) -> PromptRead | None:
        """How its words were read; None while nothing is made, or where its engine does not tell."""
        return next((output.read for output in self.outputs if output.read is not None), None)

    @property
    def ran(self) -> ModelId:
        """The model that makes it: the one that was asked for, or what admission gave instead. It is metered."""
        return ran(self.model, self.degraded)


def ran(model: ModelId, degraded: Mapping[str, int | str]) -> ModelId:
    """The model that runs a request for `model` which admission has degraded so."""
    return ModelId(str(degraded.get("model", model)))


class IdempotencyKey(msgspec.Struct, frozen=True):
    """`Idempotency-Key` of one tenant. `digest`: of method, path and body; another one under the key is a conflict."""

    key: str
    digest: bytes


class NewJob(msgspec.Struct, frozen=True):
    """A job to accept. `request.id` is the job's id, minted by the edge: letters, digits, `_` and `-`."""

    kind: JobKind
    request: DiffusionRequest
    echo: bytes = b"{}"  # JSON object that the edge wants back with every view: prompt, size, seconds, ...
    device_s: float = 0.0  # estimated; what `eta_s` adds up
    idempotency: IdempotencyKey | None = None
    webhook_url: str | None = None  # told when it is over; checked against the SSRF rules at creation
    degraded: dict[str, int | str] = {}  # of one that has run already; msgspec copies the default


class Created(msgspec.Struct, frozen=True):
    """The job that answers: the new one, or, `is_replay`, the one that this key made before."""

    job: JobView
    is_replay: bool = False


class JobPage(msgspec.Struct, frozen=True):
    """Jobs by age; `has_more`: another page follows the last one."""

    jobs: tuple[JobView, ...]
    has_more: bool


class JobQuery(msgspec.Struct, frozen=True):
    """A page of the jobs of a tenant. `after`: the id of the last one of the page before; an unknown one is a 404."""

    tenant: TenantId | None
    kind: JobKind
    after: str | None = None
    limit: int = 20  # 0 to 100
    order: Order = "desc"  # by creation


class Body(msgspec.Struct, frozen=True):
    """The bytes of one output."""

    media_type: str
    body: bytes


class Jobs(Protocol):
    """The job table. Methods that name a job return None where there is none of that tenant."""

    async def create(self, new: NewJob) -> Created:
        """Make it durable, then answer. RequestError 409 `idempotency_conflict` for the key with another body; 400
        `webhook_url` for a target that is not allowed; CapacityError where `jobs.queued_max` is reached."""
        ...

    async def get(self, job: str, tenant: TenantId | None) -> JobView | None:
        """How it stands."""
        ...

    async def list(self, query: JobQuery) -> JobPage:
        """One page."""
        ...

    async def cancel(self, job: str, tenant: TenantId | None) -> JobView | None:
        """Stop it at the next step boundary. One that is over stays as it is."""
        ...

    async def delete(self, job: str, tenant: TenantId | None) -> bool:
        """Cancel it where it runs, and remove row and objects. False: there is none."""
        ...

    async def retry(self, job: str, tenant: TenantId | None) -> JobView | None:
        """Queue a failed one again, same parameters and seed. RequestError 409 where it has not failed."""
        ...

    async def pause(self, job: str, tenant: TenantId | None) -> JobView | None:
        """Hold it; one that runs stops at the next step boundary and keeps its checkpoint. RequestError 409: over."""
        ...

    async def resume(self, job: str, tenant: TenantId | None) -> JobView | None:
        """Let a paused one go on. One that is not paused stays as it is."""
        ...

    async def reorder(self, job: str, tenant: TenantId | None, before: str) -> JobView | None:
        """Put a waiting one directly before another waiting one of the same tenant. RequestError 409: not waiting."""
        ...

    async def pictures(self, job: str, tenant: TenantId | None) -> tuple[bytes, ...]:
        """What came with its request, as the client sent it; nothing where there is no such job."""
        ...

    async def evidence(self, job: str, tenant: TenantId | None) -> Sequence[tuple[int, EvidenceRecord]]:
        """Its attempts that are over by number, the latest ones, whichever gateway ran them; times are of this run."""
        ...

    async def content(self, job: str, tenant: TenantId | None, kind: OutputKind, index: int = 0) -> Body | None:
        """One output; None where the job or the output is unknown or has expired."""
        ...


class KeptPicture(msgspec.Struct, frozen=True):
    """A picture of a synchronous answer, kept so that `/v1/images/{id}/content` can give it out."""

    index: int
    media_type: str
    body: bytes
    seed: int | None = None
    read: PromptRead | None = None


class Usage(msgspec.Struct, frozen=True):
    """What one tenant used of one model on one day (UTC, `2026-11-29`)."""

    tenant: TenantId
    model: ModelId
    day: str
    gpu_seconds: float = 0.0
    images: int = 0
    frames: int = 0  # of videos
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of those, found in a prefix cache
    output_tokens: int = 0


class Pictures(Protocol):
    """Pictures of synchronous answers."""

    async def keep(self, new: NewJob, pictures: Sequence[KeptPicture], gpu_seconds: float) -> JobView:
        """Store the pictures and a completed row, so that `Jobs.get` and `content` know them, and meter them, all
        at once."""
        ...

    def meter(self, request: RequestId, used: Usage) -> None:
        """Count this as what a request used whose bytes are not kept, once it is written; before it is closed: what is
        told of its end then counts no more."""
        ...


class Held(msgspec.Struct, frozen=True):
    """What an idempotency key means now. `answer` None: this caller runs it, and calls `finish` or `abandon`."""

    answer: bytes | None = None


class Answers(Protocol):
    """Answers of synchronous requests by idempotency key: one run, the same answer."""

    async def begin(self, tenant: TenantId, key: IdempotencyKey) -> Held:
        """Take the key or get its answer; waits while another request runs under it, at whatever gateway. RequestError
        409 `idempotency_conflict` for another body."""
        ...

    async def finish(self, tenant: TenantId, key: IdempotencyKey, answer: bytes) -> None:
        """Keep the answer for `jobs.idempotency_hours`."""
        ...

    async def abandon(self, tenant: TenantId, key: IdempotencyKey) -> None:
        """It failed or its client left: the next one with this key runs."""
        ...


Place = tuple[str, str, str]  # day, tenant, model: what usage is ordered by


class UsageQuery(msgspec.Struct, frozen=True):
    """Which rows of usage, by day, tenant and model; both days included."""

    tenant: TenantId | None
    first_day: str
    last_day: str
    model: str | None = None
    after: Place | None = None  # the last row of the page before
    limit: int | None = None


class Meters(Protocol):
    """What is metered (SPEC H6): jobs when they end, pictures when they are kept, text when it ends."""

    @property
    def since(self) -> int | None:
        """When counting began, in Unix seconds, where it is in memory; None: the rows outlive every process."""
        ...

    async def usage(self, query: UsageQuery) -> Sequence[Usage]:
        """The rows."""
        ...

    async def sums(self, query: UsageQuery) -> Sequence[Usage]:
        """All rows of the query, whatever its `after` and `limit`, added up by day and model; of no tenant."""
        ...


class Durable(msgspec.Struct, frozen=True):
    """All of it, as `build_app` is given it."""

    jobs: Jobs
    pictures: Pictures
    answers: Answers
    meters: Meters
    queue: Queue
