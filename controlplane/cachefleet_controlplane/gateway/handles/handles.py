"""For which requests handles are used: conversations and token ids of models whose pools want it.

Prompts of conversations are rendered, so theirs is only for certified render profiles; token ids are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.handles.continuing import Continuing
from cachefleet_controlplane.gateway.handles.conversation_items import items_of
from cachefleet_controlplane.gateway.handles.fingerprints import fingerprints
from cachefleet_controlplane.gateway.handles.handle_memory import HandleMemory, HandleMetrics
from cachefleet_controlplane.gateway.handles.sending import Sending, keep_header
from cachefleet_controlplane.gateway.handles.token_continuing import TokenContinuing
from cachefleet_controlplane.gateway.handles.token_reference import about_tokens, reference
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import parse_fields
from cachefleet_controlplane.workers.render_profiles import Profile, RenderFacts
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.continuation import REF_MEMBER, RETURN_MEMBER, Fingerprints, KeptPrefix, unpacked
from cachefleet_core.prompt_keys import KEYS_PATH, TOKEN_HEADER, PromptKeysError, decode

REMEMBERED: Final = 50_000
"""Beginnings of conversations whose handles are remembered; the least recently used are dropped first."""
IDS_SECONDS: Final = 10.0
"""How long a worker may take to give the ids that it keeps."""


@dataclass(frozen=True, slots=True)
class ByHandle:
    """A request that a worker has rendered by a handle: what it keeps of it, and the whole body."""

    model: str
    info: RequestInfo
    kept: KeptPrefix
    body: bytes


class Handles:
    """Begins requests that may go by handle. ``certified`` says whether all of a model's render profiles are.

    ``key`` keys the digests; ``on_continued`` is called with each request that was rendered by handle.
    """

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        credentials: Credentials,
        *,
        key: bytes,
        metrics: Metrics,
        certified: Callable[[frozenset[Profile]], bool],
        on_continued: Callable[[ByHandle], None],
        unseen: UnseenText,
        remembered: int = REMEMBERED,
    ) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._credentials = credentials
        self._key = key
        self._metrics = HandleMetrics(metrics)
        self._certified = certified
        self._on_continued = on_continued
        self._unseen = unseen
        self._memory = HandleMemory(remembered)

    def begin(self, info: RequestInfo, body: bytes, *, model: ServedModel, tenant: str, salt: str) -> Sending | None:
        """Return how a request is sent for which a worker gets this body; None where it is always sent whole.

        ApiError for a reference that cannot be understood, or where the model's pools want no handles.
        """
        if about_tokens(info):
            return self._tokens(info, model)
        facts = self._fleet.render_facts(model.name)
        wanted = facts.conversations_at and info.bypass is None and _wanted(model)
        if not wanted or not self._certified(facts.certifiable):
            return None
        name, fields = _name(model), parse_fields(body)
        seen = self._unseen.fields(info.endpoint, fields, model)
        items = items_of(info.endpoint, fields, key=self._key, owner=(name, tenant, salt), seen=seen)
        if items is None:
            return None
        return Continuing(
            self._memory,
            items,
            fingerprints(name, facts.rendered_by, self._unseen.of(info, model), key=self._key),
            keepers=facts.conversations_at,
            metrics=self._metrics,
            on_continued=partial(self._tell, model.name, info.with_fields({})),
        )

    def _tokens(self, info: RequestInfo, model: ServedModel) -> Sending:
        if not _wanted(model):
            raise no_handles(model)
        facts = self._fleet.render_facts(model.name)
        prints = fingerprints(_name(model), facts.rendered_by, info, key=self._key)
        return TokenContinuing(
            self._memory,
            reference(info),
            prints,
            keepers=facts.conversations_at,
            metrics=self._metrics,
            ids=partial(self._ids, facts, prints),
        )

    async def _ids(self, facts: RenderFacts, prints: Fingerprints, url: str, body: bytes) -> list[int] | None:
        """Ask the worker at a URL for all token ids of a body; None where it does not give them."""
        if url not in facts.conversations_at:
            return None
        key = self._credentials.of(url)
        headers = [("content-type", "application/json"), ("authorization", f"Bearer {key}"), (TOKEN_HEADER, key)]
        headers.append(keep_header(prints))
        path = f"{KEYS_PATH}?{facts.keys_query}&ids=1"
        opened = await self._upstream.ask(url, path, body, headers=headers, seconds=IDS_SECONDS)
        if not opened.succeeded or opened.answer is None:
            return None
        try:
            return unpacked(decode(opened.answer.body)[0].ids).tolist() or None
        except (PromptKeysError, IndexError):
            return None

    def _tell(self, model: str, info: RequestInfo, kept: KeptPrefix, body: bytes) -> None:
        self._on_continued(ByHandle(model, info, kept, body))


def _wanted(model: ServedModel) -> bool:
    """Whether every pool of a model wants handles."""
    return all(pool.spec.continuation.enabled and pool.spec.continuation.handles for pool in model.declared)


def _name(model: ServedModel) -> str:
    return f"{model.namespace}/{model.upstream}"


def no_handles(model: ServedModel) -> ApiError:
    """400: a request about kept token ids, where none are kept."""
    message = (
        f"`{REF_MEMBER}` and `{RETURN_MEMBER}` need `spec.continuation.handles: true` in every pool of the model "
        f"`{model.name}`, and exact block keys. Send all token ids as `prompt`."
    )
    return ApiError(400, message, param=REF_MEMBER)
