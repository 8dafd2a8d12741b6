"""The `[jobs]` section: what JobNode decides by, and where the durable side keeps what it must not lose."""

import os
from pathlib import Path
from typing import Annotated, Final

import msgspec

from headway.adapters.storage.settings import StorageSettings
from headway.adapters.webhooks.settings import WebhookSettings
from headway.adapters.webhooks.settings import check as check_webhooks
from headway.core.errors import ConfigError
from headway.core.units import Ns, ns_from_s
from headway.sched.jobs.params import JobParams
from headway.sched.jobs.params import check as check_params

LONG_STEPS: Final = "long_steps.json"  # in the state folder: what the last start said of steps and `shutdown_s`
_HOUR_S = 3600.0


class JobSettings(JobParams, frozen=True, forbid_unknown_fields=True):
    """Videos, and pictures on `prefer: respond-async`: durable jobs, in effect where a diffusion model is served."""

    url: str = ""  # sqlite:///PATH for one gateway, postgresql://... for several; empty: jobs.db in $HEADWAY_STATE
    queued_max: Annotated[int, msgspec.Meta(ge=1)] = 10_000  # jobs that are not over; then new ones are refused
    keep_hours: Annotated[float, msgspec.Meta(gt=0)] = 24.0  # a job and its objects, once it is over
    idempotency_hours: Annotated[float, msgspec.Meta(gt=0)] = 24.0  # the same key gives the same answer so long
    previews: Annotated[int, msgspec.Meta(ge=0, le=16)] = 3  # unfinished pictures of a job on its way; 0: none
    webhooks: WebhookSettings = WebhookSettings()

    @property
    def keep_ns(self) -> Ns:
        """After the end of a job."""
        return ns_from_s(self.keep_hours * _HOUR_S)

    @property
    def answers_ns(self) -> Ns:
        """After the answer."""
        return ns_from_s(self.idempotency_hours * _HOUR_S)

    @property
    def database_url(self) -> str:
        """The one that is used."""
        return self.url or f"sqlite:///{state_folder() / 'jobs.db'}"


def state_folder() -> Path:
    """`$HEADWAY_STATE`, or `headway` under the user's state: what must outlive a process."""
    if configured := os.environ.get("HEADWAY_STATE"):
        return Path(configured)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "headway"


def objects_folder(url: str) -> Path:
    """Objects lie beside the job table where nothing else is said. Raises ConfigError for a table that is no file."""
    scheme, _, path = url.partition(":///")
    if scheme != "sqlite" or not path:
        raise ConfigError(
            "storage.url is needed where jobs.url is no file: gateways that share a table share their objects"
        )
    return Path(path).parent / "objects"


def check_jobs(settings: JobSettings, storage: StorageSettings) -> None:
    """Raise ConfigError for values that cannot work."""
    check_params(settings)
    scheme = settings.database_url.partition(":")[0].partition("+")[0]
    if scheme not in ("sqlite", "postgresql"):
        raise ConfigError(f"jobs.url = {scheme}:...: write sqlite:///PATH or postgresql://USER@HOST/NAME")
    if not storage.url:
        objects_folder(settings.database_url)
    check_webhooks(settings.webhooks)
