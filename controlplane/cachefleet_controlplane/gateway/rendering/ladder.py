"""The ladder to a prompt's token ids: which routes of which workers to try, in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final
from urllib.parse import urlencode

import msgspec

from cachefleet_controlplane.gateway.apis.parse import first_prompt
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.wire.json_members import Fields, is_null
from cachefleet_controlplane.workers.render_profiles import NO_FACTS, RenderFacts

MAX_WORKERS: Final = 2
"""Workers asked for one prompt."""
MAX_REMEMBERED: Final = 4096
TOKENIZE_PATH: Final = "/tokenize"
KEYS_PATH: Final = "/v1/fleet/keys"
_KEYED: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS)
"""Whose bodies the plugin's keys take."""

_TOKENIZE_FIELDS: Final[Mapping[Endpoint, Sequence[str]]] = {
    Endpoint.CHAT: (
        *("model", "messages", "tools", "chat_template", "chat_template_kwargs", "mm_processor_kwargs"),
        *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
    ),
    Endpoint.COMPLETIONS: ("model", "prompt", "add_special_tokens"),
}
"""By what /tokenize takes; it knows no other API's bodies."""
_SHAPING_FIELDS: Final = ("documents", "reasoning_effort", "truncate_prompt_tokens", "prompt_embeds")
"""What shapes a prompt and /tokenize does not take."""

_encode = msgspec.json.Encoder().encode


class Rung(StrEnum):
    """Where ids came from."""

    CLIENT = "client"
    MEMO = "memo"
    """Rendered before."""
    KEYS = "keys"
    RENDER = "render"
    TOKENIZE = "tokenize"
    TEXT = "text"
    """No ids: known by its text."""
    NONE = "none"


class RungMemory:
    """Which routes not to try on which worker, and until when; bounded."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._until: dict[tuple[str, str], float] = {}

    def leave_out(self, url: str, path: str, *, until: float) -> None:
        self._until.pop((url, path), None)
        self._until[url, path] = until
        if len(self._until) > self._limit:
            del self._until[next(iter(self._until))]

    def open(self, url: str, path: str, *, now: float) -> bool:
        return self._until.get((url, path), now) <= now


@dataclass(frozen=True, slots=True)
class Try:
    """One worker asked on one rung, which is one of its routes."""

    worker: WorkerEndpoint
    rung: Rung
    path: str
    query: str = ""
    dedicated: bool = False
    """It is a renderer, no worker."""
    model: str = ""

    @property
    def slot(self) -> tuple[str, str]:
        """By what RungMemory knows it: a dedicated renderer may know one model and not another."""
        return self.worker.url, f"{self.path} {self.model}" if self.dedicated else self.path


def ladder(
    workers: Sequence[WorkerEndpoint],
    memory: RungMemory,
    *,
    ask: RequestInfo,
    now: float,
    facts: RenderFacts = NO_FACTS,
    dedicated: Sequence[WorkerEndpoint] = (),
) -> list[Try]:
    """What to try, in order: dedicated renderers; then every worker's renderer, best worker first; then tokenizers."""
    first = workers[:MAX_WORKERS]
    render, query = f"{ask.endpoint}/render", _query(facts)
    keyed = bool(facts.contract) and ask.endpoint in _KEYED
    special = partial(Try, dedicated=True, model=facts.model)
    tries = [
        *(special(one, Rung.KEYS, KEYS_PATH, query) for one in dedicated if keyed),
        *(special(one, Rung.RENDER, render) for one in dedicated),
        *(Try(one, Rung.KEYS, KEYS_PATH, query) for one in first if keyed and one.url in facts.keys_at),
        *(Try(one, Rung.RENDER, render) for one in first),
        *(Try(one, Rung.TOKENIZE, TOKENIZE_PATH) for one in first if tokenizable(ask)),
    ]
    return [one for one in tries if memory.open(*one.slot, now=now)]


def _query(facts: RenderFacts) -> str:
    return "?" + urlencode({"contract": facts.contract, "block_size": facts.block_size})


def tokenizable(ask: RequestInfo) -> bool:
    """Whether /tokenize sees all of the body that shapes the prompt."""
    if not knows_bodies_of(ask.endpoint) or ask.bypass is not None:
        return False
    return all(is_null(ask.fields, name) for name in _SHAPING_FIELDS)


def knows_bodies_of(endpoint: Endpoint) -> bool:
    """Whether /tokenize takes such bodies at all."""
    return endpoint in _TOKENIZE_FIELDS


def tokenize_body(ask: RequestInfo) -> bytes:
    fields: Fields = first_prompt(ask)
    return _encode({name: fields[name] for name in _TOKENIZE_FIELDS[ask.endpoint] if name in fields})
