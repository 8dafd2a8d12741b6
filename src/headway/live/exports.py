"""Where evidence goes beside the HTTP API: a collector, a file. Off the token path; a dead sink costs records only."""

from pathlib import Path
from typing import Final

from headway.adapters.telemetry.jsonl import EvidenceFile
from headway.adapters.telemetry.otlp import Ended, SpanWriter, check_endpoint, ended, http_exporter
from headway.adapters.telemetry.outbox import Outbox, OutboxLimits
from headway.core.errors import ConfigError
from headway.core.evidence import EvidenceRecord
from headway.core.request import LlmRequest, TextRequest
from headway.live.stores import TelemetrySettings

CLOSE_S: Final = 6.0  # longer than one export with its retries


def check_exports(settings: TelemetrySettings) -> None:
    """Raise ConfigError, naming the key, for sinks that cannot work."""
    if settings.otlp_endpoint is not None:
        check_endpoint(settings.otlp_endpoint)
    if settings.evidence_file is not None and not Path(settings.evidence_file).absolute().parent.is_dir():
        raise ConfigError(f"telemetry.evidence_file is {settings.evidence_file}; its folder does not exist")


class Exports:
    """The sinks of one run."""

    def __init__(self, settings: TelemetrySettings, epoch_ns: int) -> None:
        """`epoch_ns`: Unix time of the run's clock at 0. Raises ConfigError."""
        check_exports(settings)
        limits = OutboxLimits(settings.export_waiting_max)
        self._spans: Outbox[Ended] | None = None
        self._file: Outbox[EvidenceRecord] | None = None
        if settings.otlp_endpoint is not None:
            writer = SpanWriter(http_exporter(settings.otlp_endpoint), epoch_ns)
            self._spans = Outbox("otlp", writer.write, limits)
        if settings.evidence_file is not None:
            try:
                file = EvidenceFile(
                    Path(settings.evidence_file), settings.evidence_file_bytes_max, settings.evidence_files_max
                )
            except OSError as error:
                raise ConfigError(f"telemetry.evidence_file: cannot write {settings.evidence_file}: {error}") from error
            self._file = Outbox("evidence-file", file.append, limits)

    def ended(self, record: EvidenceRecord, request: LlmRequest | TextRequest) -> None:
        """Leave a record to every sink."""
        if self._spans is not None and (one := ended(record, request)) is not None:
            self._spans.put(one)
        if self._file is not None:
            self._file.put(record)

    def lost(self) -> tuple[tuple[str, int], ...]:
        """Records that each sink lost."""
        found: list[tuple[str, int]] = []
        if self._spans is not None:
            found.append(("otlp", self._spans.lost))
        if self._file is not None:
            found.append(("evidence_file", self._file.lost))
        return tuple(found)

    def close(self) -> None:
        """Write what waits, for a few seconds at most."""
        for outbox in (self._spans, self._file):
            if outbox is not None:
                outbox.close(CLOSE_S)
