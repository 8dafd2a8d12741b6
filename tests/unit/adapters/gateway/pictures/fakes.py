"""A painter behind the gateway, jobs that live in memory, and small pictures of every form."""

import asyncio
import base64
import io
import json
from collections.abc import Mapping, Sequence

import msgspec
from PIL import Image
from tests.unit.adapters.gateway.fakes import MODEL, Client, FakeServing, FakeStream, Reply, toy_tokenizer

from headway.adapters.gateway.app import build_app
from headway.adapters.gateway.job_ports import (
    Body,
    Created,
    Durable,
    Held,
    IdempotencyKey,
    JobError,
    JobPage,
    JobQuery,
    JobView,
    KeptPicture,
    NewJob,
    Output,
    OutputKind,
    Usage,
    UsageQuery,
)
from headway.adapters.gateway.ports import ModelCard, PictureCard, PictureEstimate
from headway.adapters.gateway.queue_ports import Hold, QueueLine, QueueView, Running
from headway.adapters.gateway.settings import ApiKey, AuthSettings, GatewaySettings
from headway.core.artifacts import Made, PromptRead
from headway.core.effects import Admitted, End, ErrorOut, Show
from headway.core.errors import CapacityError, RequestError
from headway.core.evidence import EvidenceRecord, WorkerMarks
from headway.core.ids import NodeId, RequestId, TenantId
from headway.core.request import DiffusionRequest, FinishReason
from headway.core.units import NS_PER_S

PAINTER, FILMER = "painter", "filmer"
LOOKS = PictureCard(
    size="64x64", multiple=8, pixels_max=256 * 256, steps=4, steps_max=50, guidance_scale=3.0, edits=True
)
FILMS = PictureCard(size="64x64", steps=4, fps=2)
TOY = toy_tokenizer()


def picture(width: int = 16, height: int = 16, form: str = "PNG", colour: int = 0) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (colour, 0, 0)).save(out, form)
    return out.getvalue()


def data_url(body: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(body).decode()}"


class Painter(FakeServing):
    """Makes pictures at once, or when `release` is called; its bytes name prompt, seed and steps."""

    def __init__(self) -> None:
        super().__init__(TOY)
        self.cards = [
            self.card,
            ModelCard(PAINTER, ("image",), 0, 1, 0, 0, pictures=LOOKS),
            ModelCard(FILMER, ("video",), 0, 1, 0, 0, pictures=FILMS),
        ]
        self.painted: list[DiffusionRequest] = []
        self.predicted: PictureEstimate | None = PictureEstimate({"denoise": 1.0}, 1.0, 0.5, "admit")
        self.foresee = lambda _request: self.predicted
        self.error: ErrorOut | None = None
        self.read: PromptRead | None = None
        self.degraded: tuple[tuple[str, int | str], ...] = ()
        self.closed_requests: list[RequestId] = []
        self.stored_ns: list[int] = []

    def models(self) -> Sequence[ModelCard]:
        return self.cards

    def submit(self, request: object, received_ns: int, body_ns: int) -> FakeStream:
        if not isinstance(request, DiffusionRequest):
            return super().submit(request, received_ns, body_ns)
        stream = self.streams[request.id] = FakeStream()
        self.painted.append(request)
        if not self.held:
            self.paint(request)
        return stream

    def paint(self, request: DiffusionRequest) -> None:
        stream, content = self.streams[request.id], request.content
        if self.degraded:
            stream.put(Admitted(request.id, self.degraded))
        if self.error is not None:
            stream.put(End(request.id, FinishReason.REJECTED, self.error))
            return
        for number, step in enumerate(request.preview_steps):
            made = Made("preview", b"preview %d" % number, number, step)
            stream.put(Show(request.id, step, request.steps, (made,)))
        for k in range(request.n):
            body = f"{content.prompt}/{request.seed + k}/{request.steps}/{request.strength}".encode()
            made = Made("picture", body, k, request.steps, request.seed + k, self.read)
            stream.put(Show(request.id, request.steps, request.steps, (made,)))
        marks = WorkerMarks(
            NodeId("rep-0"), 0, device_ns=2 * NS_PER_S, text_encode_ns=NS_PER_S // 4, vae_decode_ns=NS_PER_S // 2
        )
        stream.put(End(request.id, FinishReason.STOP, marks=marks))

    def cancel(self, request: RequestId) -> None:
        self.cancelled.append(request)
        self.streams[request].put(End(request, FinishReason.CANCELLED))

    def closed(self, request: RequestId, first_token_ns: int | None, input_bytes: int, *, stored_ns: int = 0) -> None:
        self.closed_requests.append(request)
        self.stored_ns.append(stored_ns)


class MemoryJobs:
    """Every port of `Durable` in one place."""

    def __init__(self) -> None:
        self.rows: dict[str, JobView] = {}
        self.news: dict[str, NewJob] = {}
        self.bodies: dict[tuple[str, OutputKind, int], Body] = {}
        self.keys: dict[tuple[TenantId, str], tuple[bytes, str]] = {}
        self.answers: dict[tuple[TenantId, str], tuple[bytes, asyncio.Future[bytes | None]]] = {}
        self.metered: list[Usage] = []
        self.attempts: list[tuple[int, EvidenceRecord]] = []
        self.is_away = False
        self.since: int | None = None

    # Jobs

    async def create(self, new: NewJob) -> Created:
        request = new.request
        if new.idempotency is not None:
            place = (request.tenant, new.idempotency.key)
            known = self.keys.setdefault(place, (new.idempotency.digest, request.id))
            if known[0] != new.idempotency.digest:
                raise RequestError("Another body has this key.", status=409, code="idempotency_conflict")
            if known[1] != request.id:
                return Created(self.rows[known[1]], is_replay=True)
        view = JobView(
            request.id, new.kind, request.tenant, request.model, "queued", "queued", 0, 1_700_000_000, echo=new.echo
        )
        view = msgspec.structs.replace(view, degraded=new.degraded)
        self.rows[request.id] = msgspec.structs.replace(view, eta_s=new.device_s)
        self.news[request.id] = new
        return Created(self.rows[request.id])

    def complete(self, job: str, outputs: Mapping[tuple[OutputKind, int], Body]) -> None:
        for (kind, index), body in outputs.items():
            self.bodies[job, kind, index] = body
        told = tuple(Output(kind, body.media_type, index) for (kind, index), body in outputs.items())
        self.change(job, state="completed", status="completed", progress=100, outputs=told, eta_s=None)

    def change(self, job: str, **fields: object) -> JobView:
        self.rows[job] = msgspec.structs.replace(self.rows[job], **fields)
        return self.rows[job]

    async def get(self, job: str, tenant: TenantId | None) -> JobView | None:
        view = self.rows.get(job)
        return view if view is not None and tenant in (None, view.tenant) else None

    async def list(self, query: JobQuery) -> JobPage:
        own = [view for view in self.rows.values() if query.tenant in (None, view.tenant) and view.kind == query.kind]
        rows = own if query.order == "asc" else own[::-1]
        if query.after is not None:
            rows = rows[[view.id for view in rows].index(query.after) + 1 :]
        return JobPage(tuple(rows[: query.limit]), len(rows) > query.limit)

    async def cancel(self, job: str, tenant: TenantId | None) -> JobView | None:
        if self.rows[job].status in ("completed", "failed"):
            return self.rows[job]
        return self.change(job, status="failed", state="cancelled", error=JobError("cancelled", "It was cancelled."))

    async def delete(self, job: str, tenant: TenantId | None) -> bool:
        return self.rows.pop(job, None) is not None

    async def retry(self, job: str, tenant: TenantId | None) -> JobView | None:
        return self.change(job, status="queued", error=None, attempts=2)

    async def pause(self, job: str, tenant: TenantId | None) -> JobView | None:
        return self.change(job, is_paused=True)

    async def resume(self, job: str, tenant: TenantId | None) -> JobView | None:
        return self.change(job, is_paused=False)

    async def reorder(self, job: str, tenant: TenantId | None, before: str) -> JobView | None:
        return self.rows[job]

    async def pictures(self, job: str, tenant: TenantId | None) -> tuple[bytes, ...]:
        return self.news[job].request.content.pictures

    async def evidence(self, job: str, tenant: TenantId | None) -> Sequence[tuple[int, EvidenceRecord]]:
        if self.is_away:
            raise CapacityError("the job table does not answer", status=503, code="no_job_table")
        return [one for one in self.attempts if one[1].request == job and tenant in (None, one[1].tenant)]

    async def content(self, job: str, tenant: TenantId | None, kind: OutputKind, index: int = 0) -> Body | None:
        return self.bodies.get((job, kind, index))

    # Pictures, Answers, Meters

    async def keep(self, new: NewJob, pictures: Sequence[KeptPicture], gpu_seconds: float) -> JobView:
        view = (await self.create(new)).job
        self.complete(view.id, {("picture", one.index): Body(one.media_type, one.body) for one in pictures})
        told = tuple(Output("picture", one.media_type, one.index, read=one.read) for one in pictures)
        self.change(view.id, outputs=told)
        self.metered.append(Usage(view.tenant, view.ran, "2026-11-29", gpu_seconds, len(pictures), 0, 1))
        return self.rows[view.id]

    def meter(self, request: RequestId, used: Usage) -> None:
        self.metered.append(used)

    async def begin(self, tenant: TenantId, key: IdempotencyKey) -> Held:
        known = self.answers.get((tenant, key.key))
        if known is not None and known[0] != key.digest:
            raise RequestError("Another body has this key.", status=409, code="idempotency_conflict")
        if known is not None and (answer := await asyncio.shield(known[1])) is not None:
            return Held(answer)
        self.answers[tenant, key.key] = key.digest, asyncio.get_running_loop().create_future()
        return Held()

    async def finish(self, tenant: TenantId, key: IdempotencyKey, answer: bytes) -> None:
        self.answers[tenant, key.key][1].set_result(answer)

    async def abandon(self, tenant: TenantId, key: IdempotencyKey) -> None:
        self.answers.pop((tenant, key.key))[1].set_result(None)

    async def usage(self, query: UsageQuery) -> Sequence[Usage]:
        rows = [one for one in self.metered if query.first_day <= one.day <= query.last_day]
        rows = [one for one in rows if query.tenant in (None, one.tenant) and query.model in (None, one.model)]
        rows.sort(key=lambda one: (one.day, one.tenant, one.model))
        if query.after is not None:
            rows = [one for one in rows if (one.day, one.tenant, one.model) > query.after]
        return rows[: query.limit]

    async def sums(self, query: UsageQuery) -> Sequence[Usage]:
        return await self.usage(msgspec.structs.replace(query, after=None, limit=None))


class MemoryQueue:
    """`Queue`, with no jobs in it."""

    def __init__(self) -> None:
        self.holds: dict[str, Hold] = {}
        self.lines = (QueueLine("old", 2, 1),)

    async def hold(self, model: str | None, running: Running) -> QueueView:
        self.holds[model or "*"] = Hold(model or "*", running, 1_700_000_000)
        return await self.view()

    async def release(self, model: str | None) -> QueueView:
        self.holds = {} if model is None else {name: hold for name, hold in self.holds.items() if name != model}
        return await self.view()

    async def view(self) -> QueueView:
        return QueueView(tuple(self.holds.values()), self.lines)


KEYED = GatewaySettings(
    auth=AuthSettings(
        keys=tuple(
            ApiKey(f"sha256:{digest}", tenant)
            for digest, tenant in (
                ("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", "a"),  # of "a"
                ("3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d", "b"),  # of "b"
            )
        )
    )
)


class Studio:
    """A gateway with a painter and jobs. Call its methods inside one loop."""

    def __init__(self, settings: GatewaySettings | None = None) -> None:
        self.painter, self.jobs = Painter(), MemoryJobs()
        self.queue = MemoryQueue()
        durable = Durable(self.jobs, self.jobs, self.jobs, self.jobs, self.queue)
        self.app = build_app(self.painter, {MODEL: TOY}, settings or GatewaySettings(), durable)

    async def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Reply:
        return await Client(self.app).call("POST", path, body, headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Reply:
        return await Client(self.app).call(method, path, headers=headers)

    async def draw(self, headers: Mapping[str, str] | None = None, **fields: object) -> Reply:
        return await self.post(
            "/v1/images/generations", {"prompt": "a red circle", "model": PAINTER, **fields}, headers
        )

    async def film(self, headers: Mapping[str, str] | None = None, **fields: object) -> Reply:
        return await self.post("/v1/videos", {"prompt": "a red circle", "model": FILMER, **fields}, headers)


def form(fields: Sequence[tuple[str, str]], files: Sequence[tuple[str, bytes]] = ()) -> tuple[bytes, dict[str, str]]:
    """A multipart body and its header."""
    parts = [f'content-disposition: form-data; name="{name}"\r\n\r\n{text}'.encode() for name, text in fields]
    parts += [
        f'content-disposition: form-data; name="{name}"; filename="in.png"\r\ncontent-type: image/png\r\n\r\n'.encode()
        + body
        for name, body in files
    ]
    whole = b"".join(b"--edge\r\n" + part + b"\r\n" for part in parts) + b"--edge--\r\n"
    return whole, {"content-type": "multipart/form-data; boundary=edge"}


def data_of(reply: Reply) -> list[bytes]:
    return [base64.b64decode(one["b64_json"]) for one in json.loads(reply.body)["data"]]
