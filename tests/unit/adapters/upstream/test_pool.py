"""What clients are told of an upstream that cannot be reached."""

import errno
import socket
import ssl

import pytest

from headway.adapters.upstream.pool import connect_failure


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.5', 9000)"), "Connection refused"),
        (OSError("Multiple exceptions: ('::1', 9000), ('127.0.0.1', 9000)"), "none of its addresses answers"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "its name is not found"),
        (ssl.SSLCertVerificationError(1, "certificate is not valid for 'vllm.inner'"), "TLS failed"),
    ],
)
def test_a_connection_that_cannot_be_made_is_told_without_the_address(error: OSError, told: str) -> None:
    # SPEC M1
    assert connect_failure(error) == told
