"""Text of a body that its engine's renderer leaves out of the prompt: neither digests nor text keys depend on it.

Claude Code begins its system text with a line that differs in each request, ``x-anthropic-billing-header: ...``, and
vLLM takes that out where its release does so: of blocks of ``/v1/messages`` since before 0.28, of system messages of
chats, which instructions of responses and other texts become, from 0.32 on; not of lists of parts in responses. Which
texts may be such is a list here (MARKERS); whether an engine leaves one out is asked of its renderer, once for each
render profile and *place*: two prompts that differ in nothing but that line must render to the same token ids. Until
that is known, and where nobody renders, every byte counts. Only what follows the marker on its line is left out: a
text without the line is not taken for one with it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.handles.conversation_items import LISTS
from cachefleet_controlplane.wire.json_members import NULL, READ_ERRORS, Fields
from cachefleet_controlplane.workers.render_profiles import RenderFacts
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_runtime.lru import LruMap
from cachefleet_runtime.tasks import BackgroundTasks

MARKERS: Final = (b"x-anthropic-billing-header",)
"""How texts begin whose first line an engine may leave out."""
MAX_ANSWERS: Final = 1024
MAX_QUESTIONS: Final = 4
"""At a time; what is not asked now is asked for a later request."""
AGAIN_SECONDS: Final = 60.0
"""Before a question that nobody answered is asked again."""
_SYSTEM: Final = "system"
_MEMBERS: Final = {Endpoint.MESSAGES: "system", Endpoint.RESPONSES: "instructions"}
_TEXTS: Final = {endpoint: tuple(filter(None, (name, _MEMBERS.get(endpoint, "")))) for endpoint, name in LISTS.items()}
_TEXT_PARTS: Final = {Endpoint.RESPONSES: "input_text"}
_NONCES: Final = ("cc_version=1.0; cch=0;", "cc_version=2.1.17.f09; cc_entrypoint=cli; cch=5d2ab;")
_LINES: Final = tuple(
    re.compile(rb'(?<!\\)("%b)(?:[^"\\]|\\(?!n|u000[aA]).)*' % marker, re.DOTALL) for marker in MARKERS
)

_items = msgspec.json.Decoder(list[Raw])
_encode = msgspec.json.Encoder().encode

Ask = Callable[[ServedModel, Endpoint, bytes], Awaitable[Sequence[int] | None]]
"""The token ids to which a worker of a model renders a body; None where none tells."""


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Where such a text may stand: in a member of an API's bodies; ``listed`` as a part of a list."""

    endpoint: Endpoint
    member: str
    listed: bool


class _Message(Struct, frozen=True):
    role: str = ""
    content: Raw = NULL


_message = msgspec.json.Decoder(_Message)


def places(endpoint: Endpoint, fields: Fields) -> frozenset[TextPlace]:
    """Where a body has texts that an engine may leave out."""
    return frozenset(place for place, _ in _found(endpoint, fields))


def without(endpoint: Endpoint, fields: Fields, unseen: AbstractSet[TextPlace]) -> Fields:
    """A body's members without the lines in those places; the same object where there are none."""
    changed: Fields = {}
    for place, items in _found(endpoint, fields):
        if place not in unseen:
            continue
        if items is None:
            changed[place.member] = _masked(fields[place.member])
        else:
            before = _items.decode(changed.get(place.member, fields[place.member]))
            changed[place.member] = Raw(
                _encode([_masked(one) if at in items else one for at, one in enumerate(before)])
            )
    return fields | changed if changed else fields


def _found(endpoint: Endpoint, fields: Fields) -> Iterator[tuple[TextPlace, frozenset[int] | None]]:
    """Each place with the numbers of its items; None where the member is the text itself, or its parts."""
    member, listed = _MEMBERS.get(endpoint, ""), LISTS.get(endpoint, "")
    if _marked(fields.get(member, NULL)):
        yield TextPlace(endpoint, member, _is_list(fields[member])), None
    if _marked(fields.get(listed, NULL)):
        contents = list(_system_contents(fields[listed]))
        for parts in (False, True):
            items = frozenset(at for at, content in contents if _is_list(content) == parts)
            if items:
                yield TextPlace(endpoint, listed, parts), items


def _system_contents(messages: Raw) -> Iterator[tuple[int, Raw]]:
    """Numbers and contents of the system messages that have a marker."""
    try:
        items = _items.decode(messages)
    except READ_ERRORS:
        return
    for at, item in enumerate(items):
        if not _marked(item):
            continue
        try:
            message = _message.decode(item)
        except READ_ERRORS:
            continue
        if message.role == _SYSTEM and _marked(message.content):
            yield at, message.content


def _marked(raw: Raw) -> bool:
    data = bytes(raw)
    return any([marker in data for marker in MARKERS])  # noqa: C419 (a list of one, in each request: half the time)


def _masked(raw: Raw) -> Raw:
    data = bytes(raw)
    for line in _LINES:
        data = line.sub(rb"\1", data)
    return Raw(data)


def _is_list(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"["


def question(place: TextPlace, marker: str, nonce: str, *, model: str) -> bytes:
    """A body with such a text in a place."""
    text = f"{marker}: {nonce}\nBe kind."
    part = {"type": _TEXT_PARTS.get(place.endpoint, "text"), "text": text}
    content: object = [part] if place.listed else text
    asks = {"role": "user", "content": "Hi"}
    own = place.member == _MEMBERS.get(place.endpoint)
    turns = [asks] if own else [{"role": _SYSTEM, "content": content}, asks]
    body: dict[str, object] = {"model": model, LISTS[place.endpoint]: turns} | ({place.member: content} if own else {})
    return _encode(body | ({"max_tokens": 1} if place.endpoint is Endpoint.MESSAGES else {}))


class UnseenText:
    """Leaves out of bodies what the renderer of their model leaves out; asks it with ``ask`` beside requests."""

    def __init__(
        self, ask: Ask, facts: Callable[[str], RenderFacts], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._facts = facts
        self._clock = clock
        self._answers: LruMap[tuple[str, TextPlace], bool | None] = LruMap(MAX_ANSWERS)
        self._not_before: LruMap[tuple[str, TextPlace], float] = LruMap(MAX_ANSWERS)
        self._tasks = BackgroundTasks("asking what a renderer leaves out", failed=lambda: None)

    def of(self, info: RequestInfo, model: ServedModel) -> RequestInfo:
        """The request without it; the same object where there is none. Never waits."""
        if not any(info.ask.mentions(marker) for marker in MARKERS):
            return info  # as nearly all
        fields = self.fields(info.endpoint, info.fields, model)
        return info if fields is info.fields else info.with_fields(fields)

    def fields(self, endpoint: Endpoint, fields: Fields, model: ServedModel) -> Fields:
        """The members of a body without it; the same object where there is none. Never waits."""
        if not any(_marked(fields[name]) for name in _TEXTS.get(endpoint, ()) if name in fields):
            return fields  # as nearly all
        found = places(endpoint, fields)
        return without(endpoint, fields, self._unseen(found, model)) if found else fields

    async def settled(self) -> None:
        """Wait until no question is open."""
        await self._tasks.settled()

    def close(self) -> None:
        """End open questions."""
        self._tasks.cancel()

    def _unseen(self, found: AbstractSet[TextPlace], model: ServedModel) -> set[TextPlace]:
        facts = self._facts(model.name)
        if len(facts.profiles) > 1:  # workers that may render in several ways
            return set()
        renderer = facts.profiles[0] if facts.profiles else facts.model
        return {place for place in found if self._is_unseen((renderer, place), model)}

    def _is_unseen(self, name: tuple[str, TextPlace], model: ServedModel) -> bool:
        known = self._answers.use(name)
        if known is None and self._not_before.get(name, 0.0) <= self._clock() and len(self._tasks) < MAX_QUESTIONS:
            self._not_before.put(name, self._clock() + AGAIN_SECONDS)
            self._tasks.start(self._learn(name, model))
        return bool(known)

    async def _learn(self, name: tuple[str, TextPlace], model: ServedModel) -> None:
        place = name[1]
        asked = partial(question, place, MARKERS[0].decode(), model=model.upstream)
        one, other = [await self._ask(model, place.endpoint, asked(nonce)) for nonce in _NONCES]
        if one is not None and other is not None:
            self._answers.put(name, list(one) == list(other))
