"""Counts of requests that were named: asked for where a client has left before its whole answer.

What vLLM's output processor knows of a request is looked at once, when the request has ended: a client that leaves has
its request aborted, and the answer with the counts never comes. Nothing is done for each token.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from cachefleet_core.engine.left_answers import FEATURE, MAX_NAME, NAME_HEADER, LeftAnswer
from cachefleet_worker.plugin.asgi import App, Receive, Scope, Send
from cachefleet_worker.plugin.compat import unmet
from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.plugin_process import Process, engineless

KEPT: Final = 4096
"""Requests whose counts are kept, the latest ones."""
END_SECONDS: Final = 2.0
"""How long the end of a request is waited for: its client has left, and the engine hears of it now."""
_STOCK: Final = "cachefleet_unhooked"
_HEADER: Final = NAME_HEADER.encode()


class Counted:
    """One named request: what the output processor keeps of its choices while it runs, then its counts."""

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.counts: LeftAnswer | None = None
        self.ended = asyncio.Event()

    def end(self) -> None:
        """Take the counts, and keep nothing else."""
        states, self.states = self.states, []
        self.counts = counts_of(states)
        self.ended.set()


_current: ContextVar[Counted | None] = ContextVar("cachefleet_counted", default=None)


def attach(app: Any, process: Process) -> None:
    """Count named requests of vLLM's application, once the feature is installed; none where nobody may ask for them."""
    if FEATURE in process.settings.plugin_off or not process.worker_key():
        return
    app.add_middleware(CountsNamed, known=lambda: process.parts.get(FEATURE), faults=process.faults)


def install(process: Process, *, has_engine: bool) -> None:
    """Hook vLLM's output processor in this API server, unless that is switched off."""
    closed = process.settings.switched_off(FEATURE) or process.keyless()
    if missing := closed or engineless(has_engine) or unmet(FEATURE):
        process.faults.off(FEATURE, missing)
        return
    from vllm.v1.engine.output_processor import OutputProcessor  # noqa: PLC0415 - only where vLLM serves

    patch(OutputProcessor, process.faults)
    process.parts[FEATURE] = NamedRequests()
    process.capabilities.add(FEATURE, "on")


def patch(processor: type[Any], faults: Faults) -> None:
    """Hook ``processor``; an earlier hook is replaced."""
    wrap_method(processor, "add_request", functools.partial(_hooked, faults), mark=_STOCK)


def _hooked(faults: Faults, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def add_request(self: Any, request: Any, *args: Any, **named: Any) -> Any:
        added = stock(self, request, *args, **named)
        if (counted := _current.get()) is not None and faults.on(FEATURE):
            with faults.guard(FEATURE):
                counted.states.append(self.request_states[request.request_id])
        return added

    return add_request


class NamedRequests:
    """The latest named requests of this API server."""

    def __init__(self) -> None:
        self._requests: OrderedDict[bytes, Counted] = OrderedDict()

    def begin(self, name: bytes) -> Counted:
        """A request with this name begins; an earlier one is forgotten."""
        self._requests.pop(name, None)
        counted = self._requests[name] = Counted()
        while len(self._requests) > KEPT:
            self._requests.popitem(last=False)
        return counted

    async def counts(self, name: bytes) -> LeftAnswer | None:
        """The counts of a request, once it has ended; None where it is not known, or goes on."""
        if (counted := self._requests.get(name)) is None:
            return None
        try:
            async with asyncio.timeout(END_SECONDS):
                await counted.ended.wait()
        except TimeoutError:
            return None
        return counted.counts


class CountsNamed:
    """ASGI middleware: requests with the header are counted by its value."""

    def __init__(self, app: App, known: Callable[[], NamedRequests | None], faults: Faults) -> None:
        self._app = app
        self._known = known
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = _name(scope) if scope["type"] == "http" else b""
        if not name or (known := self._known()) is None:
            await self._app(scope, receive, send)
            return
        counted = known.begin(name)
        token = _current.set(counted)
        try:
            await self._app(scope, receive, send)
        finally:
            _current.reset(token)
            with self._faults.guard(FEATURE):
                counted.end()


def _name(scope: Scope) -> bytes:
    found = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    return found if len(found) <= MAX_NAME else b""


def counts_of(states: list[Any]) -> LeftAnswer:
    """The counts of a request's choices; of the choices of one prompt the prompt counts once."""
    prompts: dict[object, tuple[int, int | None]] = {}
    produced = 0
    for state in states:
        made = state.detokenizer.num_output_tokens() if state.detokenizer is not None else 0
        produced += made
        parent = state.parent_req
        key = state.request_id if parent is None else parent.request_id
        cached = (state.num_cached_tokens or 0) if made else None
        before = prompts.get(key, (0, None))[1]
        known = [each for each in (before, cached) if each is not None]
        prompts[key] = (state.prompt_len, max(known, default=None))
    told = [cached for _, cached in prompts.values() if cached is not None]
    return LeftAnswer(sum(tokens for tokens, _ in prompts.values()), produced, sum(told) if told else None)
