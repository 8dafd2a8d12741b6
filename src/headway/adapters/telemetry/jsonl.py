"""Evidence as JSON lines: one record per line, in the shape of `GET /v1/requests/{id}/evidence`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from headway.adapters.gateway.evidence import evidence_object
from headway.core.evidence import EvidenceRecord


def evidence_lines(records: Iterable[EvidenceRecord]) -> bytes:
    """Return one line per record, each with its line end."""
    return b"".join(msgspec.json.encode(evidence_object([one], one.trace_id)) + b"\n" for one in records)


class EvidenceFile:
    """Appends records to a file. A full one becomes `NAME.1`, the one before `NAME.2`; the oldest is removed."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        """`files_max` counts the file that grows. Raises OSError when it cannot be written."""
        self._path, self._bytes_max, self._files_max = path, bytes_max, files_max
        with path.open("ab"):
            pass

    def append(self, records: Sequence[EvidenceRecord]) -> int:
        """Write records; returns how many were lost, which is none. Raises OSError when the disk refuses."""
        lines = [evidence_lines([record]) for record in records]
        while lines:
            size = self._path.stat().st_size if self._path.exists() else 0
            if size and size + len(lines[0]) > self._bytes_max:
                self._rotate()
                size = 0
            taken = 1
            size += len(lines[0])
            while taken < len(lines) and size + len(lines[taken]) <= self._bytes_max:
                size += len(lines[taken])
                taken += 1
            with self._path.open("ab") as file:
                file.write(b"".join(lines[:taken]))
            del lines[:taken]
        return 0

    def _rotate(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files_max))]
        names[-1].unlink(missing_ok=True)
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            if newer.exists():
                newer.rename(older)
