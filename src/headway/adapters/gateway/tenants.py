"""Who sends a request: API keys to tenants, by digest and in constant time (SPEC M5)."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from headway.adapters.gateway.settings import AuthSettings, TenantSettings
from headway.core.errors import RequestError
from headway.core.ids import TenantId

DEFAULT_TENANT: Final = TenantId("default")
_DIGESTS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "sha256": lambda key: hashlib.sha256(key).digest(),
    "blake2b": lambda key: hashlib.blake2b(key).digest(),
}


class Tenant(msgspec.Struct, frozen=True):
    """A tenant as the gateway treats it. An admin sees what belongs to others."""

    id: TenantId
    admin: bool = False
    priority_floor: int | None = None
    weight: int = 1
    allow_degrade: tuple[str, ...] = ()


class KeyTable:
    """The configured keys."""

    def __init__(self, settings: AuthSettings) -> None:
        self._settings = settings
        self._keys: list[tuple[str, bytes, Tenant]] = []
        for key in settings.keys:
            kind, _, digest = key.hash.partition(":")
            self._keys.append((kind, bytes.fromhex(digest), self._tenant(key.tenant, key.admin)))
        self.has_admin = any(key.admin for key in settings.keys)

    def tenant(self, authorization: str | None) -> Tenant:
        """Return the tenant of an `Authorization` header. Raises RequestError 401 when no configured key fits.

        Every configured digest is compared, so the time tells nothing about which one was near.
        """
        if not self._keys:
            return self._tenant(DEFAULT_TENANT, admin=True)
        if authorization is None:
            if self._settings.anonymous is not None:
                return self._tenant(self._settings.anonymous, admin=False)
            raise RequestError(
                "No API key was given; send `Authorization: Bearer KEY`.", status=401, code="invalid_api_key"
            )
        scheme, _, key = authorization.partition(" ")
        given = {kind: digest(key.strip().encode()) for kind, digest in _DIGESTS.items()}
        found: Tenant | None = None
        for kind, digest, tenant in self._keys:
            if hmac.compare_digest(given[kind], digest):
                found = tenant
        if found is None or scheme.lower() != "bearer":
            raise RequestError("Incorrect API key provided.", status=401, code="invalid_api_key")
        return found

    def _tenant(self, name: str, admin: bool) -> Tenant:
        own = self._settings.tenants.get(name, TenantSettings())
        return Tenant(TenantId(name), admin, own.priority_floor, own.weight, own.allow_degrade)
