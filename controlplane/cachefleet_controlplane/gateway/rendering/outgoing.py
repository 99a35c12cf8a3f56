"""A request as the worker that is asked for its keys may be sent it at once, to hold it until it is to be answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cachefleet_controlplane.gateway.rendering.render_ladder import Try
from cachefleet_controlplane.gateway.upstream.worker_answer import AttemptResult
from cachefleet_controlplane.gateway.upstream.worker_call import Held
from cachefleet_controlplane.wire.headers import Header, upstream_headers
from cachefleet_controlplane.workers.render_profiles import RenderFacts
from cachefleet_core.engine.held_requests import HOLD_HEADER, NOT_HELD, Hold


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What any worker would be sent; ``headers`` are the client's, ``model`` is the engine's name for it.

    ``beside``: the native request of the client that the answer is for.
    """

    path: str
    body: bytes = field(repr=False)
    headers: Sequence[Header] = field(repr=False)
    model: str
    beside: Any = field(default=None, repr=False)

    def held_headers(self, body: bytes, facts: RenderFacts, *, key: str, ids: bool) -> list[tuple[str, str]]:
        """Return the headers of a request that is to be held; ``body`` is what is sent of it."""
        hold = Hold(
            length=len(body),
            contract=facts.contract,
            block_size=facts.block_size,
            lookahead=facts.lookahead,
            model=self.model,
            ids=ids,
        )
        return [*upstream_headers(self.headers, key=key), (HOLD_HEADER, hold.header())]


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that a worker holds."""

    url: str
    path: str
    body: bytes = field(repr=False)
    answer: Held = field(repr=False)
    takes_members: bool = False
    """Members of the body may come late."""

    def serves(self, url: str, path: str, body: bytes, *, changed: bool) -> bool:
        """Whether this is what the worker at a URL would be sent; ``changed``: with other members."""
        return (url, path, body) == (self.url, self.path, self.body) and (self.takes_members or not changed)


def may_be_held(attempt: Try, facts: RenderFacts) -> bool:
    """Whether to have the worker hold the request, instead of asking for its keys alone."""
    return attempt.by_plugin and attempt.worker.url in facts.held_at


def is_not_held(opened: AttemptResult) -> bool:
    """Whether a worker says that it holds requests no more."""
    answer = opened.answer
    return answer is not None and answer.status == 501 and NOT_HELD.encode() in answer.body
