"""What /metrics tells: how many requests, how long they took, and which models are served."""

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from tapas.web.models import Models

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Measurements:
    """Counters in the text format of Prometheus."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        requests = Counter(
            "tapas_requests", "Answered requests.", ["route", "status"], registry=registry
        )
        seconds_by_route = Histogram(
            "tapas_request_seconds", "Seconds of a request.", ["route"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        # labels are looked up once: that takes longer than counting
        self._answered = lru_cache(None)(lambda route, status: requests.labels(route, str(status)))
        self._seconds_of = lru_cache(None)(seconds_by_route.labels)
        self.batch = Histogram(
            "tapas_batch_size", "Histories or items that were scored together.",
            buckets=SIZES, registry=registry,
        )  # fmt: skip
        self._steps = Gauge(
            "tapas_model_step", "Step of the served checkpoint.", ["model"], registry=registry
        )
        self._reloads = Gauge(
            "tapas_reloads", "Models that were replaced by newer ones.", registry=registry
        )
        self._failed = Gauge(
            "tapas_failed_reloads", "Newer models that could not be opened.", registry=registry
        )

    def add(self, route: str, status: int, seconds: float) -> None:
        """One request was answered; `route` is one of few."""
        self._answered(route, status).inc()
        self._seconds_of(route).observe(seconds)

    def as_text(self, models: Models) -> bytes:
        for model in models:
            self._steps.labels(model.name).set(-1 if model.step is None else model.step)
        self._reloads.set(models.num_reloads)
        self._failed.set(models.num_failed_reloads)
        text: bytes = generate_latest(self._registry)
        return text
