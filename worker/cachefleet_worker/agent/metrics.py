"""What an agent counts, in a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class AgentMetrics:
    """One attribute per series; labels are of fixed sets, ranks and configured targets."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
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
        self.polls = Counter("cachefleet_agent_engine_polls", "Scrapes of the engine", ["outcome"], registry=registry)
        self.warmed = Counter("cachefleet_agent_warmed_prefixes", "Prefixes cached", ["outcome"], registry=registry)
        self.ready = Gauge("cachefleet_agent_ready", "1 where the worker takes traffic", registry=registry)
        self.crashes = Counter(
            "cachefleet_agent_task_failures", "Unexpected errors of a task", ["task"], registry=registry
        )
