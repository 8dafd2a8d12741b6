"""Which addresses a webhook may go to: public ones, and what the operator allows (SSRF).

A name is judged by the addresses that it resolves to at the moment of sending, and the connection goes to exactly
those; what it resolved to before proves nothing.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_ENDS_IN_NUMBER: Final = re.compile(r"(?:.*\.)?(?:0x[0-9a-f]*|[0-9]+)\.?", re.IGNORECASE)  # WHATWG URL, host parsing
_LOOPBACK: Final[tuple[IpAddress, ...]] = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


class TargetRefused(Exception):
    """The address is not allowed; the message says why."""


class Targets:
    """The rule."""

    def __init__(self, allowed_networks: Sequence[str]) -> None:
        self._allowed = [ipaddress.ip_network(network) for network in allowed_networks]

    def check_url(self, url: str) -> URL:
        """What can be said without asking anybody; an address in the usual spelling. Raises TargetRefused."""
        try:
            parsed = URL(url)
            host, port = parsed.host, parsed.port
        except ValueError as error:  # also of a name that its own encoding does not decode
            raise TargetRefused(f"it is no URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not host or port is None:
            raise TargetRefused("only http:// and https:// with a host are told")
        if parsed.user is not None or parsed.password is not None:
            raise TargetRefused("it carries a user or a password; the signature says who sends")
        name = host.removesuffix(".").lower()
        if name == "localhost" or name.endswith(".localhost"):  # RFC 6761, 6.3
            if not any(self._allows(address) for address in _LOOPBACK):
                raise TargetRefused(_not_public(f"{host[:80]} is this machine, which"))
        elif (literal := _literal(host)) is not None:
            self.check(literal)
            if literal.version == 4:
                return parsed.with_host(str(literal))
        return parsed

    def check(self, address: IpAddress) -> None:
        """Raise TargetRefused for one that is neither public nor allowed."""
        if not self._allows(address):
            raise TargetRefused(_not_public(str(address)))

    def _allows(self, address: IpAddress) -> bool:
        inner = _inner(address)
        if any(inner in network or address in network for network in self._allowed):
            return True
        return inner.is_global and not inner.is_multicast and not inner.is_reserved


def _not_public(what: str) -> str:
    return f"{what} is not a public address (jobs.webhooks.allowed_networks may allow it)"


def _literal(host: str) -> IpAddress | None:
    """The address that is written there, in any way that resolvers take: 127.2, 0x7f.1, 2130706433, `127.0.0.2.`."""
    if ":" in host:
        return ipaddress.ip_address(host.partition("%")[0])
    if not _ENDS_IN_NUMBER.fullmatch(host):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host.removesuffix(".")))
    except OSError as error:
        raise TargetRefused(f"{host[:80]} ends in a number and is no IPv4 address") from error


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
