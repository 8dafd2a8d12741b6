import pytest

from headway.core.errors import EngineError
from headway.live.listening import bind, join, listen


def test_an_address_can_be_joined_by_the_processes_of_one_gateway() -> None:
    with bind("127.0.0.1", 0, is_shared=True) as first:
        port = first.getsockname()[1]
        with join("127.0.0.1", port) as second:
            listen(first)
            listen(second)


# SO_REUSEPORT alone would let a second gateway take half of the connections of the first, without a word.
def test_an_address_that_another_gateway_shares_is_in_use() -> None:
    with bind("127.0.0.1", 0, is_shared=True) as first:
        listen(first)
        for is_shared in (True, False):
            with pytest.raises(EngineError, match=r"cannot listen on 127\.0\.0\.1 port"):
                bind("127.0.0.1", first.getsockname()[1], is_shared=is_shared)
