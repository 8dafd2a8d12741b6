"""Tokens of text requests, metered per tenant and model (SPEC H6): gathered here, and written every few seconds."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from headway.core.errors import CapacityError
from headway.core.evidence import EvidenceRecord
from headway.core.units import NS_PER_MS, Ns
from headway.live.jobs_table import Tables

log = logging.getLogger(__name__)

FLUSH_S: Final = 2.0  # what a crash may leave unmetered

Place = tuple[str, str]  # tenant, model


class TokenMeter:
    """What ended, until it is in the table."""

    def __init__(self, tables: Tables, now_ns: Callable[[], Ns]) -> None:
        self._tables, self._now_ns = tables, now_ns
        self._open: dict[Place, dict[str, int]] = {}

    def observe(self, record: EvidenceRecord) -> None:
        """A request ended; one that no replica had is not metered, nor are pictures, which meter themselves."""
        if record.prompt_tokens is None or record.replica is None or record.model is None:
            return
        counts = {
            "device_ns": round((record.device_ms or 0.0) * NS_PER_MS),
            "images": 0,
            "frames": 0,
            "requests": 1,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "output_tokens": record.output_tokens,
        }
        self._add((record.tenant, record.model), counts)

    def _add(self, place: Place, counts: dict[str, int]) -> None:
        before = self._open.get(place, {})
        self._open[place] = {name: before.get(name, 0) + count for name, count in counts.items()}

    async def flush(self) -> None:
        """Write it; what the table does not take is written with the next one."""
        taken, self._open = self._open, {}
        if not taken:
            return
        at_ns = self._now_ns()
        try:
            await self._tables.ask(lambda: self._tables.usage.add_all(at_ns, taken))
        except CapacityError as error:
            log.warning("tokens of %d tenants and models are metered later: %s", len(taken), error)
            for place, counts in taken.items():
                self._add(place, counts)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()
