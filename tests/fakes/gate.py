"""The worker plugin's gate, and transfers between workers as a NIXL-like connector has them: what a request asks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakes.failures import bad_request

FIELD: Final = "cache_hit_threshold"
MESSAGE: Final = f"Parameter `{FIELD}` must be between 0.0 and 1.0 if provided."
HOOK: Final = "X-Cache-Threshold-Finish-Reason"
"""The header by which llm-d's simulator is made to refuse; only the value ``true`` counts."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gated:
    """What one request says; ``exempt`` are APIs whose answers have no word for a refusal."""

    own: float | None = None
    exempt: bool = True
    forced: bool = False
    transfer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fills_others(self) -> bool:
        """A Prefill worker's part of a request."""
        return bool(self.transfer.get("do_remote_decode"))

    @property
    def filled(self) -> bool:
        """A Decode worker's part: the prompt's blocks come from ``remote_engine_id``."""
        return bool(self.transfer.get("do_remote_prefill") and self.transfer.get("remote_engine_id"))

    def asks(self, default: float) -> bool:
        """Whether it may be refused at all."""
        return self.forced or self._threshold(default) > 0

    def refusal(self, computed: int, total: int, *, default: float) -> tuple[int, float] | None:
        """Tokens computed, and the threshold they are too few for; None where they are enough."""
        threshold = self._threshold(default)
        return (computed, threshold) if self.forced or computed / total < threshold else None

    def _threshold(self, default: float) -> float:
        if self.exempt or self.fills_others:
            return 0.0
        return default if self.own is None else self.own


def gated(body: Mapping[str, Any], *, forced: bool = False) -> Gated:
    """Of a body of a chat or a completion. Refusal 400 for what is no threshold."""
    given = [checked(one) for one in ((body.get("vllm_xargs") or {}).get(FIELD), body.get(FIELD))]
    own = next((one for one in reversed(given) if one is not None), None)
    return Gated(own, exempt=False, forced=forced, transfer=body.get("kv_transfer_params") or {})


def checked(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise bad_request(MESSAGE)
    return float(value)


def details(hit_tokens: int, prompt_tokens: int, threshold: float) -> Json:
    """What a refusal is founded on, as a whole answer has it."""
    found = {"hit_tokens": hit_tokens, "prompt_tokens": prompt_tokens, "threshold": threshold, "preempted": 0}
    return {"cache_threshold": found}


def transfer_params(engine_id: str, request_id: str, *, blocks: int, tokens: int) -> Json:
    """What vLLM's NixlConnector says at the end of a Prefill worker's part."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, blocks + 1))],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": tokens,
    }


def new_engine_id() -> str:
    return str(uuid.uuid4())
