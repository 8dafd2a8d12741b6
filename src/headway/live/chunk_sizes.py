"""Lengths of the chunks of a streaming session as a configuration names them (SPEC H5)."""

from headway.adapters.gateway.pictures.sizes import first_chunk_frames
from headway.adapters.gateway.ports import PictureCard
from headway.core.errors import ConfigError


def check_chunks(key: str, context: int, chunk: int, fps: int) -> None:
    """Raise ConfigError for what no model could mean. What this one can go on from is known once it is loaded."""
    if bool(context) is not bool(chunk):
        raise ConfigError(
            f"{key}.context_frames = {context} and {key}.chunk_frames = {chunk}: name both, or leave both out"
        )
    if context and not fps:
        raise ConfigError(f"{key}.context_frames = {context} needs {key}.fps: chunks are of videos")
    if context > chunk:
        raise ConfigError(
            f"{key}.context_frames = {context} is above {key}.chunk_frames = {chunk}: a chunk goes on from frames of "
            "the one before it; make it at least as long"
        )


def chunks_of(looks: PictureCard | None) -> tuple[tuple[int, int, int], ...]:
    """The first chunk and every later one: frames, how many of them are given, and how many are handed on."""
    if looks is None or not looks.chunk_frames:
        return ()
    context = looks.context_frames
    return (first_chunk_frames(looks), 0, context), (context + looks.chunk_frames, context, context)
