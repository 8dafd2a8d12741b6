"""What a child process prints, as its parent tells it."""

import asyncio
import logging

from headway.live import child


def read(printed: bytes) -> list[tuple[int, str]]:
    async def told() -> list[tuple[int, str]]:
        stream = asyncio.StreamReader(limit=64)
        stream.feed_data(printed)
        stream.feed_eof()
        return [line async for line in child.lines(stream)]

    return asyncio.run(told())


# SPEC L-2: that a process of a stage is replaced is a warning, and was told as INFO, which a server does not show
def test_a_line_keeps_the_level_that_the_childs_log_gave_it() -> None:
    words = [(level, f"{logging.getLevelName(level)} a.b: it is so") for level in (10, 20, 30, 40, 50)]
    printed = "\n".join(text for _, text in words).encode()
    assert read(printed + b"\nWARNINGS of others\n") == [
        *((max(level, logging.INFO), text) for level, text in words),
        (logging.INFO, "WARNINGS of others"),
    ]


def test_a_line_that_is_too_long_costs_only_itself() -> None:
    assert read(b"x" * 200 + b"\n" + b"ERROR a: b\n")[-1] == (logging.ERROR, "ERROR a: b")
