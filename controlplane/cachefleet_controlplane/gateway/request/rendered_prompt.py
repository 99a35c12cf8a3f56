"""A prompt as routing knows it: its length and block keys, which rung gave them, and what a worker has of it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.gateway.apis.request_info import Bypass
from cachefleet_controlplane.gateway.send.worker_call import Held


class Rung(StrEnum):
    """Where a prompt's ids or keys came from; a metric's label."""

    CLIENT = "client"
    CACHE = "cache"
    """The render cache."""
    KEYS = "keys"
    RENDER = "render"
    TOKENIZE = "tokenize"
    TEXT = "text"
    """No ids: keyed by its text."""
    NONE = "none"


class RenderFailure(StrEnum):
    """Why a prompt has no ids; a metric's label."""

    NO_WORKER = "no_worker"
    ABSENT = "absent"
    """The worker lacks the route."""
    REFUSED = "refused"
    """The worker finds the request invalid, and will say so when it is sent."""
    DECLINED = "declined"
    """The worker's plugin does not take the request; its vLLM may."""
    BUSY = "busy"
    UNAUTHORIZED = "unauthorized"
    FAILED = "failed"
    TIMEOUT = "timeout"
    MULTIMODAL = "multimodal"
    """Blocks depend on more than ids."""
    UNREADABLE = "unreadable"
    INEXACT = "inexact"
    """/tokenize would leave out something that shapes the prompt."""
    SWITCHED_OFF = "switched_off"
    """This control plane is set to render nothing."""


class Keyed(Struct, frozen=True):
    """A prompt's token count and the packed keys of its blocks; ``block_size`` is 0 where keys are not known."""

    tokens: int = 0
    keys: bytes = b""
    block_size: int = 0
    boundaries: tuple[int, ...] = ()
    """Safe boundaries that the worker proposes, in tokens; empty where it proposes none."""
    ids: array[int] | None = None
    """Only where they were asked for; kept no longer than their request."""

    def __repr__(self) -> str:
        """Without token ids, which no log may hold."""
        return f"Keyed(tokens={self.tokens}, block_size={self.block_size})"


NO_KEYS: Final = Keyed()


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that the worker at ``url`` holds, and its answer to come."""

    url: str
    answer: Held = field(repr=False)
    late: bool = False
    """Members of its body may come late."""


class Rendering(Struct, frozen=True):
    """A prompt's length and keys and the rung that gave them, or the reason why there are none."""

    prompt: Keyed = NO_KEYS
    rung: Rung = Rung.NONE
    reason: RenderFailure | Bypass | None = None
    held: HeldRequest | None = None
    """The request itself, where the worker that gave the keys holds it."""

    @property
    def held_answer(self) -> Held | None:
        """The answer of that worker to come."""
        return None if self.held is None else self.held.answer


NOT_RENDERED: Final = Rendering()
