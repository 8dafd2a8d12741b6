"""What may be set of jobs: leases, attempts, back-off, checkpoints, webhooks."""

from typing import Annotated

import msgspec

from headway.core.draw import draw_unit
from headway.core.errors import ConfigError
from headway.core.units import Ns, ns_from_s


class BackoffParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait before the next attempt: doubled each time, drawn between half of that and all of it."""

    first_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # before the second attempt
    most_s: Annotated[float, msgspec.Meta(gt=0)] = 300.0  # never longer

    def wait_ns(self, key: str, failures: int) -> Ns:
        """After `failures` (at least 1) of what `key` names."""
        whole_s = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 60))
        return ns_from_s(whole_s * (0.5 + 0.5 * draw_unit(0, key, failures, 0)))


class CheckpointParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a job is saved: the cost of saving against the work that a crash would lose (`cadence.py`)."""

    failure_every_s: Annotated[float, msgspec.Meta(gt=0)] = 3600.0  # mean time between crashes of what runs a job
    save_ms: Annotated[float, msgspec.Meta(gt=0)] = 20.0  # cost of one save, until saves are measured


class HookParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Delivery of webhooks."""

    attempts_max: Annotated[int, msgspec.Meta(ge=1, le=100)] = 12  # then the message is given up
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=300)] = 10.0  # for the receiver's answer
    in_flight_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16  # messages on their way at once
    backoff: BackoffParams = BackoffParams(5.0, 3600.0)


class JobParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The decisions of JobNode."""

    running_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 32  # jobs that this gateway has submitted at once
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 15.0  # after it a silent gateway's jobs are taken over
    progress_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0  # a job's progress is written at most so often
    poll_s: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 2.0  # looks for rows of other gateways and leases over
    attempts_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8  # without a checkpoint between; then `lost`
    wait_hours_max: Annotated[float, msgspec.Meta(gt=0)] = 72.0  # one that nobody began by then is `expired`
    sweep_s: Annotated[float, msgspec.Meta(ge=0.1)] = 60.0  # between looks for what has expired
    backoff: BackoffParams = BackoffParams()
    checkpoint: CheckpointParams = CheckpointParams()
    hooks: HookParams = HookParams()


def check(params: JobParams) -> None:
    """Raise ConfigError for values that cannot work together."""
    if params.progress_s * 3 > params.lease_s:
        raise ConfigError(
            f"jobs.progress_s = {params.progress_s} with jobs.lease_s = {params.lease_s}: a heartbeat may be missed, "
            "so three must fit into a lease; raise lease_s"
        )
    for name, backoff in (("backoff", params.backoff), ("hooks.backoff", params.hooks.backoff)):
        if backoff.most_s < backoff.first_s:
            raise ConfigError(f"jobs.{name}.most_s = {backoff.most_s} is below first_s = {backoff.first_s}; raise it")
