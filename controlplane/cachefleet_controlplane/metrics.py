"""Prometheus metrics of the control plane in a registry of its own; one method per event.

Label values come from code or from the pools in force, so their number is bounded; since they come and go, a
model's or pool's name is a label of what is counted only up to ``MAX_NAMES`` distinct ones, "other" beyond.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from cachefleet_controlplane.exposition import SettledRegistry, observe, remembering

MAX_NAMES: Final = 256
TASKS: Final = (
    "advice",
    "audit",
    "batch_runner",
    "batches",
    "budgets",
    "contracts",
    "conversations",
    "examiner",
    "files",
    "gateway",
    "history",
    "judgement_store",
    "judgements",
    "leases",
    "loads",
    "objectives",
    "objects",
    "outlines",
    "pools",
    "reports",
    "store",
    "tenants",
    "usage",
    "watch",
)
"""Tasks whose errors are counted."""

_LONG: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_COLD: Final = (1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600)
_SHORT: Final = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


class Metrics:
    """All counters and histograms of one control plane."""

    def __init__(self) -> None:
        self.registry = SettledRegistry()
        self._under_way = 0
        self._models, self._pools = set[str](), set[str]()
        self._requests_part()
        self._reports_part()
        self._upkeep_part()

    def _requests_part(self) -> None:
        self._requests = self._counter("requests", "Requests answered", "model", "endpoint", "status_class")
        self._decisions = self._counter("decisions", "Routing decisions", "policy", "verdict", "knowledge")
        self._refusals = self._counter("refusals", "Requests queued or refused, by reason", "verdict", "reason")
        self._admission = self._counter("admission_refusals", "Requests sent to no worker, by reason", "reason")
        self._queued = self._gauge("queue_requests", "Requests waiting for room on a worker")
        self._waits = self._histogram("queue_wait_seconds", "Time waited for room", "outcome", buckets=_LONG)
        self._cold = self._histogram("cold_start_seconds", "Time held for a first worker", "outcome", buckets=_COLD)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens routed", "model")
        self._predicted_tokens = self._counter("predicted_tokens", "Prompt tokens expected from cache", "model")
        self._cached_tokens = self._counter("cached_tokens", "Prompt tokens the workers served from cache", "model")
        self._lost = self._counter("lost_tokens", "Prompt tokens not served from cache, by cause", "pool", "cause")
        self._first_seen = self._counter("first_seen_tokens", "Of them no worker held, by cause", "pool", "cause")
        self._answered = self._counter("pool_answered_tokens", "Prompt tokens of answers that tell of caches", "pool")
        self._served = self._counter("pool_served_tokens", "Those of them that came from cache", "pool")
        self._shortfalls = self._counter("prediction_shortfalls", "Answers less cached than predicted", "cause")
        self._short = self._counter("prediction_shortfall_tokens", "Tokens cached less than predicted", "cause")
        self._surplus = self._counter("prediction_surplus_tokens", "Tokens cached beyond what was predicted", "cause")
        self._ttft = self._histogram("time_to_first_token_seconds", "Request to first token", "model", buckets=_LONG)
        self._added = self._histogram("gateway_added_seconds", "Time the gateway itself added", buckets=_SHORT)
        self._render = self._histogram("render_seconds", "Time to learn a prompt's ids", "rung", buckets=_SHORT)
        self._retries = self._counter("attempt_retries", "Requests tried on another worker", "reason")
        self._passed = self._counter("passed_requests", "Requests passed on", "control_plane", "outcome")
        self._gate = self._counter("gate_refusals", "Attempts that a worker's gate refused, unseen by the client")
        self._prefills = self._counter("prefill_attempts", "Prompts computed by Prefill workers for others", "outcome")
        self._deaths = self._counter("engine_deaths", "Engines that ended while they answered requests, unforeseen")
        self._fatal = self._counter("fatal_requests", "Requests held to end engines, by what became of them", "outcome")
        self._gone = self._counter("client_disconnects", "Clients that went away before their answer ended")
        self._stopped = self._counter("answers_stopped", "Answers ended unfinished because the replica stopped")
        inflight = self._gauge("requests_in_flight", "Requests being answered")
        inflight.set_function(lambda: self._under_way)

    def _reports_part(self) -> None:
        self._connections = self._gauge("report_connections", "Agents connected")
        self._frames = self._counter("report_frames", "Report frames received whose head is sound", "type")
        self._frame_bytes = self._counter("report_received_bytes", "Bytes of report frames received")
        self._malformed = self._counter("report_frames_malformed", "Frames refused", "reason")
        self._rejections = self._counter("report_rejections", "Report connections refused", "reason")
        self._divergence = self._counter("report_divergence", "States whose digest differed from the index")
        self._resyncs = self._counter("report_resyncs", "Snapshots asked for", "reason")
        self._epochs = self._counter("report_epochs", "Epochs begun by workers")

    def _upkeep_part(self) -> None:
        self._stored = self._counter("store_records", "Decision records written")
        self._dropped = self._counter("store_dropped", "Decision records dropped, the queue being full")
        self._store_errors = self._counter("store_errors", "Failures of the store", "kind")
        self._keys_lost = self._gauge("api_keys_lost", "1 while requests are refused because API keys may be lost")
        self._unwritten = self._gauge("revocations_waiting", "Revoked API keys that the store does not know of yet")
        self._audit_dropped = self._counter("audit_dropped", "Records of the audit log dropped, the queue being full")
        self._usage_dropped = self._counter("usage_dropped", "Requests whose use went unwritten, the queue being full")
        self._store_up = self._gauge("store_up", "1 while the store takes records")
        self._source_updates = self._counter("pool_source_updates", "Changes of the pools taken over")
        self._source_errors = self._counter("pool_source_errors", "Failures of the source of pools", "kind")
        self._spans = self._counter("trace_spans", "Spans of traces, by what became of them", "outcome")
        self._auth = self._counter("auth_checks", "Tokens checked", "check", "outcome")
        self._task_errors = self._counter("task_errors", "Unexpected errors caught at a task's root", "task")
        for task in TASKS:  # a series that begins at 1 shows no increase to an alert
            self._task_errors.labels(task)

    # Requests.

    def request(self, *, model: str, endpoint: str, status: int, requests: int = 1) -> None:
        """Count answers; ``model`` is a served model's name, or "" where none is known."""
        self._requests.labels(self._model(model), endpoint, f"{status // 100}xx").inc(requests)

    def request_started(self) -> None:
        """One more request is being answered."""
        self._under_way += 1

    def request_ended(self) -> None:
        """One request less is being answered; called once per ``request_started``."""
        self._under_way -= 1

    def decision(self, *, policy: str, verdict: str, knowledge: str, reason: str = "", requests: int = 1) -> None:
        """Count routing decisions; ``reason`` is counted for the verdicts queue and reject only."""
        self._decisions.labels(policy, verdict, knowledge).inc(requests)
        if verdict in {"queue", "reject"}:
            self._refusals.labels(verdict, reason).inc(requests)

    def admission_refusal(self, reason: str) -> None:
        """Count a request that is sent to no worker; ``reason`` is a ``decision.Reason``."""
        self._admission.labels(reason).inc()

    def engine_death(self) -> None:
        """Count an engine that ended while it answered requests."""
        self._deaths.inc()

    def fatal_request(self, outcome: str) -> None:
        """Count a request that is held to end engines; ``outcome`` is found, refused or doubted."""
        self._fatal.labels(outcome).inc()

    def answer_stopped(self) -> None:
        """Count an answer that was ended because the replica stops."""
        self._stopped.inc()

    def queue(self, requests: int) -> None:
        """Set how many requests wait for room."""
        self._queued.set(requests)

    def waited(self, *, outcome: str, seconds: float) -> None:
        """Count one ended wait for room; ``outcome`` is served, timeout or gone."""
        observe(self._waits.labels(outcome), seconds)

    def cold_start(self, *, outcome: str, seconds: float) -> None:
        """Count a request that was, or could not be, held for a first worker: served, timeout, gone or full."""
        observe(self._cold.labels(outcome), seconds)

    def tokens(self, *, model: str, prompt: int, predicted: int, cached: int | None) -> None:
        """Count the tokens of answered prompts; none where workers did not tell ``cached``: ratios would be wrong."""
        if cached is None:
            return
        label = self._model(model)
        self._prompt_tokens.labels(label).inc(prompt)
        self._predicted_tokens.labels(label).inc(predicted)
        self._cached_tokens.labels(label).inc(cached)

    def shortfall(self, cause: str, tokens: int) -> None:
        """Count an answer of which ``tokens`` less came from cache than predicted; ``cause`` is a
        ``cache_shortfall.Cause``.
        """
        self._shortfalls.labels(cause).inc()
        self._short.labels(cause).inc(tokens)

    def surplus(self, cause: str, tokens: int) -> None:
        """Count tokens that were served from cache beyond a prediction; ``cause`` is a ``cache_shortfall.Surplus``."""
        self._surplus.labels(cause).inc(tokens)

    def lost_tokens(self, *, pool: str, cause: str, tokens: int) -> None:
        """Count tokens of answered prompts that were not served from cache; ``cause`` is a ``LostCause``."""
        self._lost.labels(_bounded(self._pools, pool), cause).inc(tokens)

    def first_seen_tokens(self, *, pool: str, cause: str, tokens: int) -> None:
        """Count first-seen tokens; ``cause`` is a ``PromptCause``."""
        self._first_seen.labels(_bounded(self._pools, pool), cause).inc(tokens)

    def prompt_served(self, *, pool: str, prompt: int, served: int) -> None:
        """Count the tokens of prompts whose answers tell how many of them came from cache."""
        name = _bounded(self._pools, pool)
        self._answered.labels(name).inc(prompt)
        self._served.labels(name).inc(served)

    def first_token(self, *, model: str, seconds: float) -> None:
        """Record the seconds from a request's arrival to its first token."""
        observe(self._ttft.labels(self._model(model)), seconds)

    def gateway_added(self, seconds: float) -> None:
        """Record the seconds that the gateway itself added to one request."""
        observe(self._added, seconds)

    def render(self, *, rung: str, seconds: float) -> None:
        """Record how long rung ``rung`` (render, tokenize, none, ...) took to give the prompt's ids or to give up."""
        observe(self._render.labels(rung), seconds)

    def attempt_retry(self, reason: str) -> None:
        """Count a request that is tried on another worker."""
        self._retries.labels(reason).inc()

    def passed_on(self, control_plane: str, outcome: str) -> None:
        """Count a request that was passed on to another control plane; ``outcome``: answered, first_event (a stream),
        server_error, key_refused (401 or 403 to the client), unreachable, ...
        """
        self._passed.labels(control_plane, outcome).inc()

    def gate_refusal(self) -> None:
        """Count an attempt that a worker's gate refused: it held less of the prompt than the threshold."""
        self._gate.inc()

    def prefill_attempt(self, outcome: str) -> None:
        """Count a prompt computed for another worker; ``outcome`` is prefilled, prefill_failed, ..."""
        self._prefills.labels(outcome).inc()

    def client_gone(self) -> None:
        """Count a client that disconnected before its answer ended."""
        self._gone.inc()

    # Reports.

    def reports_connected(self) -> None:
        """One more agent is connected."""
        self._connections.inc()

    def reports_disconnected(self) -> None:
        """One agent less is connected."""
        self._connections.dec()

    def frame(self, kind: str, size: int = 0, *, frames: int = 1) -> None:
        """Count well-formed frames (hello, snapshot, delta, state) of ``size`` bytes in all."""
        self._frames.labels(kind).inc(frames)
        self._frame_bytes.inc(size)

    def malformed(self, reason: str) -> None:
        """Count a frame that was refused."""
        self._malformed.labels(reason).inc()

    def report_rejected(self, reason: str) -> None:
        """Count a connection that we refused or closed: unauthenticated, busy, unknown_pool, silent, ..."""
        self._rejections.labels(reason).inc()

    def divergence(self) -> None:
        """Count a State whose digest differed from the index."""
        self._divergence.inc()

    def resync(self, reason: str) -> None:
        """Count a snapshot asked for; ``reason`` is a ``StreamEvent``."""
        self._resyncs.labels(reason).inc()

    def epoch(self) -> None:
        """Count a new epoch of a worker."""
        self._epochs.inc()

    # Upkeep.

    def store_written(self, records: int) -> None:
        """Count decision records written."""
        self._stored.inc(records)

    def store_dropped(self, records: int = 1) -> None:
        """Count decision records dropped, the queue being full."""
        self._dropped.inc(records)

    def store_error(self, kind: str) -> None:
        """Count a failure of the database; ``kind`` is a ``StoreError.kind``."""
        self._store_errors.labels(kind).inc()

    def store_up(self, *, up: bool) -> None:
        """Set whether the store takes decision records."""
        self._store_up.set(int(up))

    def keys_lost(self, *, lost: bool) -> None:
        """Set whether requests are refused because the store that may have had API keys was lost."""
        self._keys_lost.set(int(lost))

    def revocations_waiting(self, revocations: int) -> None:
        """Set how many revoked API keys are refused and not written yet."""
        self._unwritten.set(revocations)

    def usage_dropped(self, requests: int = 1) -> None:
        """Count requests whose usage was dropped, the queue being full."""
        self._usage_dropped.inc(requests)

    def audit_dropped(self) -> None:
        """Count a record of the audit log dropped, the queue being full."""
        self._audit_dropped.inc()

    def pools_updated(self) -> None:
        """Count a new state of the pools taken over from the source."""
        self._source_updates.inc()

    def pool_source_error(self, kind: str) -> None:
        """Count a failure of the pool source: invalid, missing, unreachable, denied, ..."""
        self._source_errors.labels(kind).inc()

    def trace_spans(self, outcome: str, spans: int) -> None:
        """Count spans that were exported, or failed at the collector, or were dropped, the queue being full."""
        self._spans.labels(outcome).inc(spans)

    def auth(self, *, check: str, outcome: str) -> None:
        """Count a token checked by ``check`` (reports, admin): allowed, unauthenticated, forbidden or unavailable."""
        self._auth.labels(check, outcome).inc()

    def task_error(self, task: str) -> None:
        """Count an unexpected error caught at a task's root; ``task`` is one of TASKS."""
        self._task_errors.labels(task).inc()

    def collect_from(self, collector: Collector) -> None:
        """Register a collector that is read at each scrape."""
        self.registry.register(collector)

    def _model(self, name: str) -> str:
        return _bounded(self._models, name)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return remembering(Counter(f"cachefleet_{name}", help_text, labels, registry=self.registry))

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(f"cachefleet_{name}", help_text, registry=self.registry)

    def _histogram(self, name: str, help_text: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
        return remembering(Histogram(f"cachefleet_{name}", help_text, labels, registry=self.registry, buckets=buckets))


def _bounded(known: set[str], name: str) -> str:
    """A name as a label: itself where it is one of the first MAX_NAMES."""
    if name in known:
        return name
    if len(known) >= MAX_NAMES:
        return "other"
    known.add(name)
    return name
