"""What keys of the gateway's sections mean, for the reference: the adapter's structs do not know the file."""

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "auth.keys": "who may ask; empty: everybody may, and every caller is an admin",
    "auth.keys[].hash": "from `headway config hash-key`: `sha256:<64 hex>` (or `blake2b:<128 hex>`), never the key",
    "auth.keys[].tenant": "whose requests these are; several keys may belong to one tenant",
    "auth.keys[].admin": "true: sees what belongs to other tenants, exports traces, resets the prefix cache",
    "auth.anonymous": "tenant of requests without a key; unset: with keys configured they are refused",
    "auth.tenants": "limits by tenant; a tenant that is not named here has the defaults",
    "auth.tenants.NAME.priority_floor": "lowest (soonest) `priority` it may ask for, may be negative; unset: any",
    "auth.tenants.NAME.allow_degrade": "what its requests may lose to keep their deadlines, unasked",
    "auth.tenants.NAME.weight": "its share under `scheduler.order` = fair",
    "limits.header_bytes": "of one request",
    "limits.body_bytes": "of one request",
    "limits.body_timeout_s": "from the end of the headers to the end of the body",
    "limits.n": "choices that one request may ask for",
    "limits.prompts": "prompts in one request",
    "limits.stop": "stop texts in one request",
    "limits.stop_chars": "of one stop text",
    "limits.messages": "in one conversation",
    "limits.upload_bytes": "of one request that may bring pictures",
    "diffusion[].scheduler.caps": "smaller batches of single shapes",
    "diffusion[].scheduler.caps[].height": "pixels",
    "diffusion[].scheduler.caps[].width": "pixels",
    "diffusion[].scheduler.caps[].frames": "of a video",
    "diffusion[].scheduler.caps[].batch_max": "pictures of that shape together, at most `batch_max`",
    "stream.ping_s": "a comment is sent after so long without a token, so that proxies keep the connection",
    "stream.stall_timeout_s": "a client that takes nothing for so long is cancelled",
    "slo": "promises by route, for requests that bring none",
    "slo.ROUTE.ttft_ms": "to the first token; unset: no promise",
    "slo.ROUTE.tpot_ms": "per token after the first; unset: no promise",
    "slo.ROUTE.e2e_ms": "to the last token; unset: no promise",
}
