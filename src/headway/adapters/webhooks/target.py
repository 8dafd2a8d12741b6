"""Which addresses a webhook may go to: public ones, and what the operator allows (SSRF).

A name is judged by the addresses that it resolves to at the moment of sending, and the connection goes to exactly
those; what it resolved to before proves nothing.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class TargetRefused(Exception):
    """The address is not allowed; the message says why."""


class Targets:
    """The rule."""

    def __init__(self, allowed_networks: Sequence[str]) -> None:
        self._allowed = [ipaddress.ip_network(network) for network in allowed_networks]

    def check_url(self, url: str) -> URL:
        """What can be said without asking anybody. Raises TargetRefused."""
        try:
            parsed = URL(url)
            host, port = parsed.host, parsed.port
        except ValueError as error:  # also of a name that its own encoding does not decode
            raise TargetRefused(f"it is no URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not host or port is None:
            raise TargetRefused("only http:// and https:// with a host are told")
        if parsed.user is not None or parsed.password is not None:
            raise TargetRefused("it carries a user or a password; the signature says who sends")
        if (literal := _literal(host)) is not None:
            self.check(literal)
        return parsed

    def check(self, address: IpAddress) -> None:
        """Raise TargetRefused for one that is neither public nor allowed."""
        inner = _inner(address)
        if any(inner in network or address in network for network in self._allowed):
            return
        if not inner.is_global or inner.is_multicast or inner.is_reserved:
            raise TargetRefused(f"{address} is not a public address (jobs.webhooks.allowed_networks may allow it)")


def _literal(host: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _inner(address: IpAddress) -> IpAddress:
    """The address that packets go to in the end, where one stands inside another."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inside = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inside is None and address in _NAT64:
        inside = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inside or address


class GuardedResolver(AbstractResolver):
    """Resolves a name, and refuses it when any of its addresses is not allowed."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """As aiohttp asks. Raises TargetRefused, OSError."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        except UnicodeError as error:  # the codec of names, for a label that is too long
            raise TargetRefused(f"{host[:80]} is no name of a host: {error}") from error
        results: list[ResolveResult] = []
        for at_family, _, protocol, _, address in found:
            self._targets.check(ipaddress.ip_address(str(address[0]).partition("%")[0]))
            results.append(
                ResolveResult(
                    hostname=host,
                    host=str(address[0]),
                    port=port,
                    family=at_family,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST,
                )
            )
        return results

    async def close(self) -> None:
        """Nothing is held."""
