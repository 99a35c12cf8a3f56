"""The render ladder: which routes of which workers to try for a prompt's token ids, in which order.

Dedicated renderers (``vllm launch render`` processes without a GPU) are asked before any worker, in rotation. One that
fails is left out, longer after each failure in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from cachefleet_controlplane.gateway.apis.parse import first_prompt
from cachefleet_controlplane.gateway.apis.request_info import Bypass, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.request.rendered_prompt import Rung
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.wire.json_members import Fields, is_null
from cachefleet_controlplane.workers.render_profiles import NO_FACTS, RenderFacts
from cachefleet_core.prompt_keys import KEYS_PATH
from cachefleet_runtime.backoff import backoff

ASKED: Final = 2
"""Renderers asked for one prompt, at most."""
PAUSE_SECONDS: Final = 5.0
MAX_PAUSE_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Health:
    failures: int = 0
    until: float = 0.0


class Renderers:
    """The dedicated renderers at ``urls``, in rotation, with their health; times are monotonic, in seconds."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._endpoints = [WorkerEndpoint(url, url.rstrip("/"), ready=True) for url in dict.fromkeys(urls)]
        self._health = {endpoint.url: _Health() for endpoint in self._endpoints}
        self._turn = 0

    def next(self, now: float) -> list[WorkerEndpoint]:
        """Return the healthy ones whose turn it is, ASKED at most."""
        if not self._endpoints:
            return []
        self._turn = (self._turn + 1) % len(self._endpoints)
        order = self._endpoints[self._turn :] + self._endpoints[: self._turn]
        return [endpoint for endpoint in order if self.healthy(endpoint.url, now)][:ASKED]

    def healthy(self, url: str, now: float) -> bool:
        """Whether its pause after failures is over."""
        return self._health[url].until <= now

    def failed(self, url: str, now: float) -> None:
        """Leave it out for a while: it gave no answer, or a 5xx."""
        health = self._health[url]
        health.until = now + backoff(health.failures, first=PAUSE_SECONDS, longest=MAX_PAUSE_SECONDS)
        health.failures += 1

    def answered(self, url: str) -> None:
        """Forget its failures."""
        self._health[url] = _Health()


MAX_WORKERS: Final = 2
"""Workers asked for one prompt."""
MAX_REMEMBERED: Final = 4096
TOKENIZE_PATH: Final = "/tokenize"
_APIS: Final[Mapping[Endpoint, str]] = {
    Endpoint.CHAT: "",
    Endpoint.COMPLETIONS: "",
    Endpoint.RESPONSES: "responses",
    Endpoint.MESSAGES: "messages",
}
"""Endpoints whose bodies the plugin's keys route takes, and what it calls their API."""

_TOKENIZE_FIELDS: Final[Mapping[Endpoint, Sequence[str]]] = {
    Endpoint.CHAT: (
        *("model", "messages", "tools", "chat_template", "chat_template_kwargs", "mm_processor_kwargs"),
        *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
    ),
    Endpoint.COMPLETIONS: ("model", "prompt", "add_special_tokens"),
}
"""Members that /tokenize takes, by endpoint; it takes no other API's bodies."""
_SHAPING_FIELDS: Final = ("documents", "reasoning_effort", "truncate_prompt_tokens", "prompt_embeds")
"""Members that shape a prompt, and that /tokenize does not take."""

_encode = msgspec.json.Encoder().encode


class RungMemory:
    """Which routes not to try on which worker, and until when, in monotonic seconds; bounded."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._until: dict[tuple[str, str], float] = {}

    def leave_out(self, url: str, path: str, *, until: float) -> None:
        """Leave a route out for a while; beyond the limit the entry set longest ago is dropped."""
        self._until.pop((url, path), None)
        self._until[url, path] = until
        if len(self._until) > self._limit:
            del self._until[next(iter(self._until))]

    def open(self, url: str, path: str, *, now: float) -> bool:
        """Whether a route may be tried."""
        return self._until.get((url, path), now) <= now


class Try(msgspec.Struct, frozen=True):
    """One question to one worker on one rung, which is one of its routes."""

    worker: WorkerEndpoint
    rung: Rung
    path: str
    query: str = ""
    dedicated: bool = False
    """It is a dedicated renderer, not a worker."""
    model: str = ""
    api: str = ""
    """What the keys route calls the body's API."""

    @property
    def by_plugin(self) -> bool:
        """Whether it asks a worker's plugin, which may hold the request, or take it by handle."""
        return self.rung is Rung.KEYS and not self.dedicated

    @property
    def slot(self) -> tuple[str, str]:
        """Key in RungMemory.

        With the model, since a dedicated renderer may know one model and not another; and the API, of which a vLLM may
        render one and not another.
        """
        return self.worker.url, " ".join(filter(None, (self.path, self.model if self.dedicated else "", self.api)))


def ladder(
    workers: Sequence[WorkerEndpoint],
    *,
    info: RequestInfo,
    facts: RenderFacts = NO_FACTS,
    dedicated: Sequence[WorkerEndpoint] = (),
) -> Iterator[Try]:
    """Yield the tries in order: dedicated renderers; keys, then render routes of workers, best first; tokenizers.

    Only workers' keys take media into account. Most requests need the first try alone, so the others are made late.
    """
    first = workers[:MAX_WORKERS]
    render, query = f"{info.endpoint}/render", f"?{facts.keys_query}"
    keyed = bool(facts.contract) and info.endpoint in _APIS
    keys = (_asked(worker, info, query) for worker in first if keyed and worker.url in _at(facts, info))
    if info.bypass is not None:
        return keys
    special = partial(Try, dedicated=True, model=facts.model)
    return chain(
        (special(each, Rung.KEYS, KEYS_PATH, query) for each in dedicated if keyed and not _APIS[info.endpoint]),
        (special(each, Rung.RENDER, render) for each in dedicated),
        keys,
        (Try(worker, Rung.RENDER, render) for worker in first),
        (Try(worker, Rung.TOKENIZE, TOKENIZE_PATH) for worker in first if tokenizable(info)),
    )


def _at(facts: RenderFacts, info: RequestInfo) -> frozenset[str]:
    """URLs of the workers that give block keys for a request."""
    return facts.keys_at if info.bypass is None else facts.keys_at & facts.media_at


def keys_media(info: RequestInfo, facts: RenderFacts) -> bool:
    """Whether workers can be asked for keys of a request with media: parts of messages, and no vectors as a prompt."""
    media = info.bypass is Bypass.MEDIA and is_null(info.fields, "prompt_embeds")
    return media and info.endpoint in _APIS and bool(_at(facts, info))


def _asked(worker: WorkerEndpoint, info: RequestInfo, query: str) -> Try:
    """Ask a worker's plugin for keys."""
    api = _APIS[info.endpoint]
    return Try(worker, Rung.KEYS, KEYS_PATH, query + (f"&api={api}" if api else ""), api=api)


def tokenizable(info: RequestInfo) -> bool:
    """Whether /tokenize takes all members of the body that shape the prompt."""
    if not knows_bodies_of(info.endpoint) or info.bypass is not None:
        return False
    return all(is_null(info.fields, name) for name in _SHAPING_FIELDS)


def knows_bodies_of(endpoint: Endpoint) -> bool:
    """Whether /tokenize takes bodies of this endpoint at all."""
    return endpoint in _TOKENIZE_FIELDS


def tokenize_body(info: RequestInfo) -> bytes:
    """Return the body for /tokenize: the members that it takes, with the first prompt alone."""
    fields: Fields = first_prompt(info)
    return _encode({name: fields[name] for name in _TOKENIZE_FIELDS[info.endpoint] if name in fields})
