"""The record of a batch, as clients see it, and the bounds of batches."""

from __future__ import annotations

import secrets
from typing import Any, Final

from msgspec import Struct

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.batches.batch_status import BatchStatus
from cachefleet_core.tenancy import TenantId

HOUR: Final = 3600
ENDPOINTS: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS, Endpoint.RESPONSES)
"""What a batch may ask."""
WINDOW: Final = "24h"
"""OpenAI's only completion window."""
MAX_WINDOW_HOURS: Final = 168
MAX_METADATA: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512
LATER: Final = tuple(status for status in BatchStatus if status is not BatchStatus.VALIDATING)
"""Statuses to which a batch comes."""


class BatchBounds(Struct, frozen=True, kw_only=True):
    """Bounds on batches and on who runs them; seconds and bytes."""

    lines: int = 50_000
    """Of one input file."""
    line_bytes: int = 32 * 1024 * 1024
    """Of one line: a request's body is bounded, too."""
    unfinished: int = 100
    """Batches of a tenant that are not over."""
    requests: int = 16
    """Lines that a replica has answered at once, over all batches."""
    free_percent: int = 25
    """Blocks that are free on a worker, in percent, before it counts as spare room."""
    kept_seconds: float = 30 * 86_400.0
    """How long a batch and its files are kept after its end."""
    lease_seconds: float = 20.0
    """How long a batch is its runner's without a sign of life."""
    poll_seconds: float = 1.0
    """How often a runner looks for batches, cancellations and room."""
    at_once: int = 16
    """Batches that a replica runs at once, one for each tenant."""


class ErrorLine(Struct, frozen=True, omit_defaults=False):
    """What is wrong with an input file, and in which line of it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Batch(Struct, frozen=True, kw_only=True):
    """One batch of a tenant; times are Unix seconds."""

    id: str
    tenant: TenantId
    endpoint: str
    input_file: str
    window: str
    given: dict[str, str] | None
    """Its metadata."""
    models: list[str] | None
    """What the key by which it was made may use; None for all models."""
    key: str | None = None
    """Id of that key, where it has a budget of its own."""
    model: str
    """The one that its lines ask for, once they are checked."""
    status: BatchStatus
    created: float
    expires: float
    """The end of its window."""
    deleted: float
    """When it is forgotten."""
    times: dict[str, float]
    """When it came to each status."""
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: list[ErrorLine]
    output_file: str | None = None
    error_file: str | None = None

    def shown(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        errors = {"object": "list", "data": self.errors} if self.errors else None
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model or None,
            "errors": errors,
            "input_file_id": self.input_file,
            "completion_window": self.window,
            "status": self.status,
            "output_file_id": self.output_file,
            "error_file_id": self.error_file,
            "created_at": int(self.created),
            "expires_at": int(self.expires),
            **{f"{status}_at": _whole(self.times.get(status)) for status in LATER},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.given,
        }


def new_batch_id() -> str:
    """Return an id that nobody guesses."""
    return f"batch_{secrets.token_hex(12)}"


def window_seconds(given: object) -> float | None:
    """Return the seconds of a completion window such as `24h`; None for what is none."""
    if not isinstance(given, str) or not given.endswith("h") or len(given) > len("168h"):
        return None
    hours = given[:-1]
    known = hours.isascii() and hours.isdigit() and 1 <= int(hours) <= MAX_WINDOW_HOURS
    return float(hours) * HOUR if known else None


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)
