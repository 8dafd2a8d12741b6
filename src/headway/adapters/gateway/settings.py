"""The gateway's part of the configuration file. Every value has a default that works; checks name the key."""

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headway.adapters.gateway.prices import Price, PriceSheet
from headway.core.errors import ConfigError

DIGEST_SIZES: Final = {"sha256": 64, "blake2b": 128}  # hex digits
_HASHED: Final = re.compile(r"(sha256|blake2b):([0-9a-f]+)")

PositiveInt = Annotated[int, Meta(ge=1)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NameText = Annotated[str, Meta(min_length=1, max_length=128)]


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One API key by its digest: `sha256:<hex>` or `blake2b:<hex>`. The key itself is stored nowhere."""

    hash: str
    tenant: NameText
    admin: bool = False


class TenantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one tenant. `priority_floor`: the lowest (soonest) `priority` it may ask for.

    `allow_degrade`: what its requests may lose to keep their deadlines without saying so themselves.
    """

    priority_floor: int | None = None
    allow_degrade: tuple[Literal["max_tokens", "model"], ...] = ()
    weight: PositiveInt = 1


class AuthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is who. With no key configured every request belongs to tenant `default`, whatever key it carries.

    With keys, `anonymous` is the tenant of requests that carry none; without it they are refused.
    """

    keys: tuple[ApiKey, ...] = ()
    anonymous: NameText | None = None
    tenants: dict[str, TenantSettings] = {}  # msgspec copies the default


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request may ask of the gateway."""

    header_bytes: PositiveInt = 64 * 1024
    header_timeout_s: PositiveFloat = 20.0  # from the connection, or the first byte of a later request
    keep_alive_s: PositiveFloat = 75.0  # of an idle connection: longer than clients keep theirs, or they race its end
    body_bytes: PositiveInt = 8 * 1024 * 1024
    body_timeout_s: PositiveFloat = 30.0
    upload_bytes: Annotated[int, Meta(ge=1, le=48 * 1024 * 1024)] = 32 * 1024 * 1024  # frames to replicas hold 64 MiB
    pictures: Annotated[int, Meta(ge=1, le=16)] = 16  # in one request
    picture_pixels: PositiveInt = 16 * 1024 * 1024  # of one of them, by its header: nothing larger is decoded
    result_cache_bytes: Annotated[int, Meta(ge=0)] = 64 * 1024 * 1024  # answers to `deterministic` requests, kept
    sync_s: PositiveFloat = 60.0  # an image request predicted to take longer is refused with `use_async`
    request_timeout_s: PositiveFloat = 3600.0  # from the first byte to the last token
    prompt_chars: PositiveInt = 4_000_000  # of one prompt or conversation; encoding takes 1 to 8 us per character
    n: PositiveInt = 16
    prompts: PositiveInt = 128
    stop: PositiveInt = 16
    stop_chars: PositiveInt = 1024
    messages: PositiveInt = 4096
    remembered_requests: PositiveInt = 16384  # client ids that /v1/requests/{id}/evidence can resolve


class StreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Event streams. A client that takes nothing for `stall_timeout_s` is cancelled."""

    ping_s: PositiveFloat = 10.0
    stall_timeout_s: PositiveFloat = 60.0


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Streaming sessions of video, where a diffusion model makes chunks."""

    open_max: Annotated[int, Meta(ge=1, le=10_000)] = 64  # at once; the next one is answered 503
    tenant_open_max: Annotated[int, Meta(ge=1, le=10_000)] = 8  # of one tenant; the next one is answered 429
    seconds_max: Annotated[float, Meta(gt=0, le=86_400)] = 600.0  # of video in one session
    ahead_max: Annotated[int, Meta(ge=1, le=64)] = 8  # chunks that a client may have made before they are played


class SloDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SLO of requests on a route that bring none; null: no promise."""

    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2e_ms: PositiveFloat | None = None


class GatewaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the HTTP gateway reads from the configuration."""

    auth: AuthSettings = AuthSettings()
    limits: LimitSettings = LimitSettings()
    stream: StreamSettings = StreamSettings()
    sessions: SessionSettings = SessionSettings()
    slo: dict[str, SloDefaults] = {}  # by route; msgspec copies the default
    metrics_aliases: Literal["none", "vllm"] = "none"
    price_per_device_hour_usd: Annotated[float, Meta(ge=0)] = 2.5  # of models that `prices` does not name
    prices: tuple[Price, ...] = ()
    public_url: str | None = None  # where clients reach this server; None: the host that they name

    @property
    def sheet(self) -> PriceSheet:
        """What use costs."""
        return PriceSheet(self.prices, self.price_per_device_hour_usd)


def check_settings(settings: GatewaySettings, slo_routes: tuple[str, ...]) -> None:
    """Refuse combinations that cannot work, naming the keys. Raises ConfigError."""
    auth = settings.auth
    for number, key in enumerate(auth.keys):
        match = _HASHED.fullmatch(key.hash)
        if match is None or len(match[2]) != DIGEST_SIZES[match[1]]:
            raise ConfigError(
                f"auth.keys[{number}].hash is not sha256:<64 hex digits> or blake2b:<128 hex digits>; "
                "it holds the digest of an API key, never the key"
            )
    digests = [key.hash for key in auth.keys]
    for number, digest in enumerate(digests):
        if digest in digests[:number]:
            raise ConfigError(f"auth.keys[{number}] and auth.keys[{digests.index(digest)}] have the same hash")
    if auth.anonymous is not None and not auth.keys:
        raise ConfigError("auth.anonymous works with auth.keys only; without keys every request is tenant `default`")
    known = {key.tenant for key in auth.keys} | {auth.anonymous or "default"}
    for tenant in auth.tenants:
        if tenant not in known:
            raise ConfigError(f"auth.tenants.{tenant} has no key in auth.keys; known tenants: {sorted(known)}")
    for route in settings.slo:
        if route not in slo_routes:
            raise ConfigError(f"slo.{route} is not a route with an SLO; known: {list(slo_routes)}")
