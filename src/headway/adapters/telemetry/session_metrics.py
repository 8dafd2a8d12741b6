"""What streaming sessions of video count."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge


class SessionMetrics:
    """Registered once per process."""

    def __init__(self, registry: CollectorRegistry, open_now: Callable[[], int]) -> None:
        """`open_now` is asked at every scrape."""
        gauge = Gauge("headway_video_sessions_open", "Streaming sessions that are open.", registry=registry)
        gauge.set_function(open_now)
        text = "Chunks that were sent to clients of streaming sessions."
        self._sent = Counter("headway_video_chunks", text, ["model"], registry=registry)
        text = "Of these, the ones that came after they were to be played."
        self._late = Counter("headway_video_chunks_late", text, ["model"], registry=registry)

    def sent(self, model: str, *, is_late: bool) -> None:
        """A chunk is on its way."""
        self._sent.labels(model).inc()
        self._late.labels(model).inc(int(is_late))
