"""Times of the operator that are the same in every installation, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """The operator's intervals and timeouts; ValueError where two leaders could be at work at once.

    A leader that cannot renew its Lease stops after ``renew_seconds``, before another may take over.
    """

    lease_seconds: int = 15
    renew_seconds: float = 10
    retry_seconds: float = 2
    """Between two looks at the Lease, and between two tries to issue certificates."""
    stop_seconds: float = 3
    """How long the watches may take to end; part of the margin between ``renew_seconds`` and ``lease_seconds``."""
    retry_first_seconds: float = 0.5
    """The pause before a pool whose reconciliation failed is tried again; doubles up to ``retry_longest_seconds``."""
    retry_longest_seconds: float = 120
    request_seconds: float = 10
    """For one request to the API server."""
    discovery_seconds: float = 2
    """How often to look whether the CRD is there."""
    facts_seconds: float = 5
    """How often the control plane is asked about every pool."""
    facts_timeout_seconds: float = 2
    facts_keep_seconds: float = 15
    """How long an answer counts when none follows it."""
    status_seconds: float = 30
    """A status in which only figures have moved is written at most this often."""
    unschedulable_seconds: float = 5
    """How long a pod may be without a node before that is told."""
    chat_template_seconds: float = 15
    """How often the ConfigMap of a chat template is read again."""
    inference_pool_seconds: float = 15
    """How often InferencePools are read again, and what gateways say of them: they may not be there to be watched."""

    def __post_init__(self) -> None:
        if self.renew_seconds + self.stop_seconds > self.lease_seconds:
            raise ValueError(
                "renew_seconds and stop_seconds must together be at most lease_seconds: a leader must have stopped "
                "before another may take over"
            )
