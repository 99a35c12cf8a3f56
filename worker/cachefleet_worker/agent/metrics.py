"""Prometheus metrics of the agent, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from cachefleet_worker.agent.health import FINDINGS


class AgentMetrics:
    """One attribute per series; label values come from fixed sets, ranks and configured targets."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._count_events(self.registry)
        self._count_reports(self.registry)
        self._count_duties(self.registry)

    def _count_events(self, registry: CollectorRegistry) -> None:
        self.stream = Counter(
            "cachefleet_agent_stream",
            "Turns of the engine's event stream: gaps, replays, replay_failures, probes, duplicates, losses, ...",
            ["rank", "what"],
            registry=registry,
        )
        self.events = Counter(
            "cachefleet_agent_events",
            "Engine events stored, removed, cleared, unknown, malformed; and blocks that are not reported, by reason",
            ["rank", "outcome"],
            registry=registry,
        )
        self.epochs = Counter("cachefleet_agent_epochs", "Epochs begun, by cause", ["cause"], registry=registry)
        self.held = Gauge("cachefleet_agent_held_blocks", "Blocks held, over tiers", ["rank"], registry=registry)
        self.held_back = Gauge(
            "cachefleet_agent_held_back_batches",
            "Event batches waiting for a gap to be filled",
            ["rank"],
            registry=registry,
        )

    def _count_reports(self, registry: CollectorRegistry) -> None:
        self.frames = Counter("cachefleet_agent_frames", "Report frames made, by kind", ["kind"], registry=registry)
        self.resyncs = Counter("cachefleet_agent_resyncs", "Snapshots asked for", registry=registry)
        self.overflows = Counter(
            "cachefleet_agent_send_queue_overflows", "Send queues emptied for a slow reader", registry=registry
        )
        self.connections = Gauge("cachefleet_agent_connections", "Control planes connected", registry=registry)
        self.connects = Counter(
            "cachefleet_agent_connects", "Attempts to reach a control plane, by outcome", ["outcome"], registry=registry
        )
        self.refused_frames = Counter(
            "cachefleet_agent_refused_frames", "Frames from a control plane that were not understood", registry=registry
        )

    def _count_duties(self, registry: CollectorRegistry) -> None:
        self.polls = Counter("cachefleet_agent_engine_polls", "Scrapes of the engine", ["outcome"], registry=registry)
        self.warmed = Counter("cachefleet_agent_warmed_prefixes", "Prefixes cached", ["outcome"], registry=registry)
        self.policies = Counter(
            "cachefleet_agent_policies", "Policies given to the engine, by outcome", ["outcome"], registry=registry
        )
        self.capability = Gauge(
            "cachefleet_agent_capability",
            "1 for the mode that each feature has on this engine",
            ["feature", "mode"],
            registry=registry,
        )
        self.withdrawals = Counter(
            "cachefleet_agent_withdrawals", "Engines taken out of traffic, by finding", ["finding"], registry=registry
        )
        for finding in FINDINGS:  # a series that starts at 1 shows no increase to an alert
            self.withdrawals.labels(finding)
        self.adapters = Counter(
            "cachefleet_agent_adapters",
            "Adapters loaded into the running engine, unloaded, and failed to be",
            ["outcome"],
            registry=registry,
        )
        self.ready = Gauge("cachefleet_agent_ready", "1 where the worker takes traffic", registry=registry)
        self.crashes = Counter(
            "cachefleet_agent_task_failures", "Unexpected errors of a task", ["task"], registry=registry
        )

    def crashed(self, task: str) -> None:
        """Count an unexpected error of a task."""
        self.crashes.labels(task).inc()
