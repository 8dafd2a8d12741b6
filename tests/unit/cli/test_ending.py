import os
import signal

import pytest

from headway.cli.ending import EXIT_INTERRUPTED, EXIT_TERMINATED, Terminated, exit_code, terminable


def test_sigterm_is_handled_where_ctrl_c_is_and_ends_with_its_own_code() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as stopped, terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert exit_code(stopped.value) == EXIT_TERMINATED
    assert signal.getsignal(signal.SIGTERM) == before


def test_codes_are_those_of_a_shell() -> None:
    assert (exit_code(KeyboardInterrupt()), exit_code(Terminated())) == (EXIT_INTERRUPTED, EXIT_TERMINATED)
    assert (exit_code(signal.SIGINT), exit_code(signal.SIGTERM)) == (128 + signal.SIGINT, 128 + signal.SIGTERM)
