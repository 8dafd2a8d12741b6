"""Collects what is wrong with a configuration, so that one run names all of it (SPEC M1)."""

import re
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from headway.core.errors import ConfigError
from headway.live.config_layers import Faults, Sourced

P = ParamSpec("P")
T = TypeVar("T")


class Findings:
    """Runs checks. Each that raises a ConfigError, or several in one, adds to what `end` raises."""

    def __init__(self, sources: Sequence[Sourced] = ()) -> None:
        """`sources`: where values came from; their file or flag is named where a text names their key."""
        self._given = [sourced for sourced in sources if sourced.origin != "default"]
        self._texts: list[str] = []

    def of(self, check: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | None:
        """Run one check; what it returns, None where it found something."""
        try:
            return check(*given, **named)
        except ConfigError as error:
            texts = error.texts if isinstance(error, Faults) else (str(error),)
            self._texts += [self._located(text) for text in texts]
            return None

    def end(self) -> None:
        """Raise ConfigError with everything that was found, each once."""
        if self._texts:
            raise Faults(tuple(dict.fromkeys(self._texts)))

    def _located(self, text: str) -> str:
        """Keys are named whole or by their last word."""
        whole = [sourced.origin for sourced in self._given if _names(text, sourced.key)]
        found = whole or [one.origin for one in self._given if _names(text, one.key.rpartition(".")[2])]
        return f"{', '.join(dict.fromkeys(found))}: {text}" if found else text


def _names(text: str, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", text) is not None
