"""What is wrong with one row of a plan is told of that row alone: the engine is the outer loop of its rows."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headway.core.artifacts import BAD_CHECKPOINT
from headway.core.errors import InvariantError, RequestError
from headway.core.request import DiffusionRequest
from headway.engines.diffusion.memory import is_out_of_memory
from headway.engines.diffusion.rows import BadCheckpoint

log = logging.getLogger(__name__)


@contextmanager
def caught(told: Callable[[Exception], None]) -> Iterator[None]:
    """Hand over whatever is raised: diffusers, torch, safetensors and image libraries raise of every kind. A bug of
    ours (InvariantError) goes on."""
    try:
        yield
    except InvariantError:
        raise
    except Exception as error:  # the outer loop of rows: one that is wrong must not end the others
        told(error)


def code_and_words(error: Exception, request: DiffusionRequest, what: str) -> tuple[str, str]:
    """Code and message of a failure of one row. One that nobody foresaw is logged with its trace."""
    if isinstance(error, RequestError):
        return error.code, str(error)
    if isinstance(error, BadCheckpoint):
        return BAD_CHECKPOINT, f"the checkpoint of request {request.id} does not fit: {error}"
    words = f"request {request.id} {what}"
    if is_out_of_memory(error):
        return "out_of_memory", f"{words}: there is no room for it; ask for fewer or smaller pictures"
    log.error("%s", words, exc_info=error)
    return "engine_failed", f"{words}: {type(error).__name__}: {error}"
