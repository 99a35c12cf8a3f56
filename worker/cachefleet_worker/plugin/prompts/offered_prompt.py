"""The handle that a request bears, on its way from its header to the renderer; and what a request for keys rendered.

Both travel in context variables: vLLM renders in the task that serves the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_core.prompt_keys import PROMPT_HEADER
from cachefleet_worker.plugin.access_guard import trusted_header
from cachefleet_worker.plugin.asgi import App, Receive, Scope, Send
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.prompts.prompt_store import PromptStore
from cachefleet_worker.plugin.prompts.render_call import Call, RenderedPrompt

_HEADER: Final = PROMPT_HEADER.encode()


@dataclass(slots=True)
class Offer:
    """A handle that a request bears; it is taken at the request's first call of the renderer."""

    store: PromptStore
    handle: str
    taken: bool = False

    def take(self, call: Call | None) -> RenderedPrompt | None:
        """The prompt, where this call would render the same."""
        if self.taken:
            return None
        self.taken = True
        return self.store.use(self.handle, call)


@dataclass(slots=True)
class Recording:
    """What is rendered meanwhile: the last call, and how many."""

    prompt: RenderedPrompt | None = None
    calls: int = 0

    def add(self, prompt: RenderedPrompt | None, *, calls: int = 1) -> None:
        """Note what further calls have made: the last one's prompt."""
        self.prompt = prompt if calls else self.prompt
        self.calls += calls

    @property
    def only(self) -> RenderedPrompt | None:
        """What the only call has rendered; None where there were several."""
        return self.prompt if self.calls == 1 else None


offered: ContextVar[Offer | None] = ContextVar("cachefleet_offered_prompt", default=None)
recorded: ContextVar[Recording | None] = ContextVar("cachefleet_recorded_prompt", default=None)


def install(app: Any, process: Process) -> None:
    """Take handles from the requests of vLLM's application, where prompts are kept and a worker key is configured."""
    store, key = process.parts.get("prompts"), process.worker_key()
    if store is not None and key:
        app.add_middleware(OfferedPrompts, store=store, worker_key=key)


@contextmanager
def recording() -> Iterator[Recording]:
    """Record what is rendered in this context; a recording around it learns of that, too."""
    made, around = Recording(), recorded.get()
    token = recorded.set(made)
    try:
        yield made
    finally:
        recorded.reset(token)
        if around is not None:
            around.add(made.prompt, calls=made.calls)


class OfferedPrompts:
    """ASGI middleware: offers a request's handle to the renderer, where the request bears the worker key."""

    def __init__(self, app: App, store: PromptStore, worker_key: bytes) -> None:
        self._app = app
        self._store = store
        self._key = worker_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._handle(scope) if scope["type"] == "http" else ""
        if not handle:
            await self._app(scope, receive, send)
            return
        offer = Offer(self._store, handle)
        token = offered.set(offer)
        try:
            await self._app(scope, receive, send)
        finally:
            offered.reset(token)
            if not offer.taken:
                self._store.unused()

    def _handle(self, scope: Scope) -> str:
        return trusted_header(scope, _HEADER, self._key).decode("latin-1")
