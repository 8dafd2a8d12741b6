"""Rows of the job table as clients' requests make and see them."""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from headway.adapters.gateway.job_ports import IdempotencyKey, JobError, JobKind, JobStatus, JobView, Output
from headway.core.artifacts import PromptRead
from headway.core.ids import ModelId, TenantId
from headway.core.jobs import OVER, JobState
from headway.core.units import NS_PER_S, Ns, s_from_ns

_FINAL: Final[dict[str, JobStatus]] = {"completed": "completed"}
OutputKind = Literal["picture", "video", "thumbnail", "spritesheet", "preview"]


class NewRecord(msgspec.Struct, frozen=True):
    """A row to be made. `body`: the encoded request."""

    id: str
    kind: JobKind
    tenant: str
    model: str
    steps: int
    body: bytes
    echo: bytes = b"{}"
    urgency: int = 0
    estimate_ns: Ns = 0
    webhook_url: str | None = None
    key: IdempotencyKey | None = None
    degraded: bytes | None = None


class MadeOutput(msgspec.Struct, frozen=True):
    """An output and where it lies."""

    output: Output
    key: str


class JobRecord(msgspec.Struct, frozen=True):
    """One row, with its outputs."""

    id: str
    kind: JobKind
    tenant: str
    model: str
    state: JobState
    urgency: int
    position: int
    stored_ns: Ns
    ended_ns: Ns | None
    expires_ns: Ns | None
    attempt: int
    steps: int
    done: int
    device_ns: Ns
    estimate_ns: Ns
    is_claimed: bool
    is_paused: bool
    has_begun: bool
    error: JobError | None
    echo: bytes
    outputs: tuple[MadeOutput, ...] = ()
    degraded: bytes | None = None
    restarts: int = 0
    restart_reason: str | None = None
    is_held: bool = False

    @property
    def status(self) -> JobStatus:
        """What clients see (CONTRACT, Jobs)."""
        if self.state in OVER:
            return _FINAL.get(self.state, "failed")
        return "in_progress" if self.has_begun else "queued"

    @property
    def left_ns(self) -> Ns:
        """Estimated device time that it still needs; of steps that admission took away nothing."""
        return work_left_ns(self.estimate_ns, self.steps, self.done, self.degraded)

    @property
    def ran_steps(self) -> int:
        """Of what runs: all that were asked for, or what admission left of them."""
        return steps_that_run(self.steps, self.degraded)

    def view(self, eta_s: float | None = None) -> JobView:
        """For the gateway."""
        is_completed = self.state == "completed"
        return JobView(
            id=self.id,
            kind=self.kind,
            tenant=TenantId(self.tenant),
            model=ModelId(self.model),
            state=self.state,
            status=self.status,
            progress=100 if is_completed else min(99, 100 * self.done // self.ran_steps),
            created_at=self.stored_ns // NS_PER_S,
            completed_at=None if self.ended_ns is None else self.ended_ns // NS_PER_S,
            expires_at=None if self.expires_ns is None else self.expires_ns // NS_PER_S,
            error=self.error,
            echo=self.echo,
            eta_s=eta_s,
            outputs=tuple(made.output for made in self.outputs),
            gpu_seconds=s_from_ns(self.device_ns) if is_completed else None,
            is_paused=self.is_paused and self.state not in OVER,
            attempts=self.attempt,
            degraded=less_of(self.degraded),
            restarts=self.restarts,
            restart_reason=self.restart_reason,
            is_held=self.is_held and self.state not in OVER,
            done=self.done,
            steps=self.steps,
        )


def less_of(degraded: bytes | None) -> dict[str, int | str]:
    """What admission took away from an attempt, as it is kept in a row."""
    return {} if degraded is None else msgspec.json.decode(degraded, type=dict[str, int | str])


def steps_that_run(steps: int, degraded: bytes | None) -> int:
    """All that were asked for, or what admission left of them."""
    left = less_of(degraded).get("steps", steps)
    return left if isinstance(left, int) and left > 0 else steps


def work_left_ns(estimate_ns: Ns, steps: int, done: int, degraded: bytes | None) -> Ns:
    """Device time of what is still to be done; `estimate_ns` is of the steps that were asked for."""
    return estimate_ns * max(0, steps_that_run(steps, degraded) - done) // steps


class _Job(Protocol):
    """A row of `jobs`."""

    id: str
    kind: JobKind
    tenant: str
    model: str
    state: JobState
    urgency: int
    position: int
    stored_ns: Ns
    ended_ns: Ns | None
    expires_ns: Ns | None
    attempt: int
    steps: int
    done: int
    device_ns: Ns
    estimate_ns: Ns
    owner: str | None
    is_paused: bool
    has_begun: bool
    error_code: str | None
    error_message: str | None
    echo: bytes
    degraded: bytes | None
    restarts: int
    restart_reason: str | None
    is_held: bool


class _Output(Protocol):
    """A row of `job_outputs`."""

    kind: OutputKind
    number: int
    media_type: str
    size: int
    seed: int | None
    key: str
    read: bytes | None


def _output(row: _Output) -> Output:
    read = None if row.read is None else msgspec.json.decode(row.read, type=PromptRead)
    return Output(row.kind, row.media_type, row.number, row.size, row.seed, read)


def record(row: _Job, made: Sequence[_Output]) -> JobRecord:
    """Of a row of `jobs` and those of `job_outputs` that belong to it."""
    outputs = [MadeOutput(_output(one), one.key) for one in made]
    return JobRecord(
        id=row.id,
        kind=row.kind,
        tenant=row.tenant,
        model=row.model,
        state=row.state,
        urgency=row.urgency,
        position=row.position,
        stored_ns=row.stored_ns,
        ended_ns=row.ended_ns,
        expires_ns=row.expires_ns,
        attempt=row.attempt,
        steps=row.steps,
        done=row.done,
        device_ns=row.device_ns,
        estimate_ns=row.estimate_ns,
        is_claimed=row.owner is not None,
        is_paused=row.is_paused,
        has_begun=row.has_begun,
        error=None if row.error_code is None else JobError(row.error_code, row.error_message or ""),
        echo=row.echo,
        outputs=tuple(sorted(outputs, key=lambda one: (one.output.kind, one.output.index))),
        degraded=row.degraded,
        restarts=row.restarts,
        restart_reason=row.restart_reason,
        is_held=row.is_held,
    )
