"""Who signs, and which addresses may be told something."""

import base64
import binascii
import ipaddress
from typing import Final

import msgspec

from headway.core.errors import ConfigError

PREFIX: Final = "whsec_"


class WebhookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages about jobs that are over. Without a secret for a tenant its `webhook_url` is refused."""

    secrets: dict[str, str] = {}  # tenant = "whsec_" and base64; `*` signs for tenants without their own
    allowed_networks: tuple[str, ...] = ()  # private ones that may be reached, as 10.1.0.0/16


def check(settings: WebhookSettings) -> None:
    """Raise ConfigError for a secret or a network that is none. The secret itself is never shown."""
    for tenant, secret in settings.secrets.items():
        try:
            is_long_enough = len(key_of(secret)) >= 16
        except binascii.Error:
            is_long_enough = False
        if not (secret.startswith(PREFIX) and is_long_enough):
            raise ConfigError(
                f"jobs.webhooks.secrets of tenant {tenant}: write {PREFIX} and at least 16 random bytes in base64"
            )
    for network in settings.allowed_networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ConfigError(f"jobs.webhooks.allowed_networks: {error}; write it as 10.1.0.0/16") from error


def key_of(secret: str) -> bytes:
    """The key that signs. Raises binascii.Error."""
    return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
