"""What a renderer leaves out of a body changes no digest and no key; every other byte does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.handles.unseen_text import TextPlace, UnseenText, places, question, without
from cachefleet_controlplane.wire.json_members import parse_fields
from cachefleet_controlplane.workers.render_profiles import RenderFacts

LINE = "x-anthropic-billing-header"
USER = {"role": "user", "content": "Hi"}
FACTS = RenderFacts(model="default/m", profiles=("sha256:p",))
MODEL: Any = SimpleNamespace(name="m", upstream="m")
PLACES = [
    TextPlace(Endpoint.MESSAGES, "system", listed=False),
    TextPlace(Endpoint.MESSAGES, "system", listed=True),
    TextPlace(Endpoint.MESSAGES, "messages", listed=False),
    TextPlace(Endpoint.MESSAGES, "messages", listed=True),
    TextPlace(Endpoint.CHAT, "messages", listed=False),
    TextPlace(Endpoint.CHAT, "messages", listed=True),
    TextPlace(Endpoint.RESPONSES, "instructions", listed=False),
    TextPlace(Endpoint.RESPONSES, "input", listed=False),
    TextPlace(Endpoint.RESPONSES, "input", listed=True),
]
IDS = [f"{place.endpoint}-{place.member}-{place.listed}" for place in PLACES]


def seen(place: TextPlace, body: bytes, unseen: set[TextPlace] | None = None) -> dict[str, Any]:
    fields = without(place.endpoint, parse_fields(body), {place} if unseen is None else unseen)
    return {name: json.loads(bytes(raw)) for name, raw in fields.items()}


@pytest.mark.parametrize("place", PLACES, ids=IDS)
def test_a_question_has_the_text_in_its_place_alone_and_differs_in_its_line_alone(place: TextPlace) -> None:
    one, other = (question(place, LINE, nonce, model="m") for nonce in ("a", "b; c"))
    assert places(place.endpoint, parse_fields(one)) == {place}
    assert one != other
    assert seen(place, one) == seen(place, other)
    assert seen(place, one, set()) == json.loads(one)
    assert "Be kind." in json.dumps(seen(place, one)), "what follows on the next line stays"
    assert seen(place, one) != seen(place, one.replace(b"Be kind.", b"Be rude."))


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_value_of_the_line_is_left_out_and_nothing_after_it(value: str, rest: str) -> None:
    value = value.replace("\n", "")
    place = PLACES[0]
    body = json.dumps({"system": f"{LINE}: {value}\n{rest}", "messages": [USER]}).encode()
    assert seen(place, body)["system"] == f"{LINE}\n{rest}"
    alone = json.dumps({"system": LINE + value, "messages": [USER]}, ensure_ascii=False).encode(errors="surrogatepass")
    assert seen(place, alone)["system"] == LINE


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": f"{LINE}: a"}]},  # no renderer leaves out what users say
        {"messages": [{"role": "assistant", "content": [{"type": "text", "text": f"{LINE}: a"}]}, USER]},
        {"messages": [{"role": "developer", "content": f"{LINE}: a"}, USER]},
        {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": f"{LINE}: a"}]},
        {"messages": "none", "tools": [{"name": f"{LINE}: a"}]},
        {"messages": [LINE, 1, None]},
    ],
)
def test_texts_elsewhere_are_looked_at(body: dict[str, Any]) -> None:
    fields = parse_fields(json.dumps(body).encode())
    assert places(Endpoint.CHAT, fields) == frozenset()
    assert without(Endpoint.CHAT, fields, set(PLACES)) is fields


def test_a_text_that_only_quotes_the_line_stays_as_it_is() -> None:
    place = TextPlace(Endpoint.CHAT, "messages", listed=False)
    body = json.dumps({"messages": [{"role": "system", "content": f'Say "{LINE}: a" or\n{LINE}: b'}, USER]}).encode()
    assert seen(place, body) == json.loads(body)


def test_each_place_of_a_body_is_its_own() -> None:
    parts = [{"type": "text", "text": f"{LINE}: a"}]
    messages = [{"role": "system", "content": f"{LINE}: b"}, {"role": "system", "content": parts}, USER]
    body = json.dumps({"system": [*parts, {"type": "text", "text": "be kind"}], "messages": messages}).encode()
    fields = parse_fields(body)
    assert places(Endpoint.MESSAGES, fields) == set(PLACES[1:4])
    changed = seen(PLACES[1], body, {PLACES[1], PLACES[3]})
    assert changed["system"][0]["text"] == LINE
    assert [one["content"] for one in changed["messages"]] == [f"{LINE}: b", [{"type": "text", "text": LINE}], "Hi"]
    assert all(one["content"] == LINE for one in seen(PLACES[2], body, {PLACES[2]})["messages"][:1])


class Renderer:
    """Answers questions; ``strips`` are the places whose line it leaves out."""

    def __init__(self, *strips: TextPlace, silent: bool = False) -> None:
        self.strips, self.silent = set(strips), silent
        self.asked: list[tuple[Endpoint, bytes]] = []
        self.facts, self.now = FACTS, 0.0
        self.unseen = UnseenText(self.ask, lambda _: self.facts, clock=lambda: self.now)

    async def ask(self, _: Any, endpoint: Endpoint, body: bytes) -> Sequence[int] | None:
        self.asked.append((endpoint, body))
        left = without(endpoint, parse_fields(body), self.strips)
        return None if self.silent else [*b"".join(bytes(raw) for raw in left.values())]

    def keys(self, place: TextPlace, nonce: str) -> bytes:
        info = parse(question(place, LINE, nonce, model="m"), place.endpoint)
        return b"".join(bytes(raw) for raw in self.unseen.of(info, MODEL).fields.values())


@pytest.mark.parametrize("place", PLACES, ids=IDS)
async def test_what_a_renderer_leaves_out_is_left_out_once_it_has_said_so(place: TextPlace) -> None:
    renderer = Renderer(place)
    assert renderer.keys(place, "a") != renderer.keys(place, "b"), "not known yet: every byte counts"
    await renderer.unseen.settled()
    assert renderer.keys(place, "a") == renderer.keys(place, "b")
    assert [endpoint for endpoint, _ in renderer.asked] == [place.endpoint] * 2, "asked once"


@pytest.mark.parametrize("place", PLACES, ids=IDS)
async def test_what_a_renderer_shows_the_model_counts(place: TextPlace) -> None:
    """An older engine, or another one: its prompts differ, and so do their caches."""
    renderer = Renderer(*(one for one in PLACES if one != place))
    for _ in range(2):
        assert renderer.keys(place, "a") != renderer.keys(place, "b")
        await renderer.unseen.settled()
    assert len(renderer.asked) == 2


async def test_a_renderer_that_does_not_answer_is_asked_again_later() -> None:
    place, renderer = PLACES[1], Renderer(PLACES[1], silent=True)
    for _ in range(3):
        renderer.keys(place, "a")
        await renderer.unseen.settled()
    assert len(renderer.asked) == 2
    renderer.now, renderer.silent = 61.0, False
    renderer.keys(place, "a")
    await renderer.unseen.settled()
    assert renderer.keys(place, "a") == renderer.keys(place, "b")


async def test_an_answer_holds_for_its_render_profile_alone() -> None:
    place, renderer = PLACES[1], Renderer(PLACES[1])
    renderer.keys(place, "a")
    await renderer.unseen.settled()
    renderer.facts = replace(FACTS, profiles=("sha256:p", "sha256:q"))  # while workers are being replaced
    assert renderer.keys(place, "a") != renderer.keys(place, "b")
    renderer.facts, renderer.strips = replace(FACTS, profiles=("sha256:q",)), set()
    renderer.keys(place, "a")
    await renderer.unseen.settled()
    assert renderer.keys(place, "a") != renderer.keys(place, "b")
    renderer.facts = FACTS
    assert renderer.keys(place, "a") == renderer.keys(place, "b")


async def test_other_requests_ask_nothing() -> None:
    renderer = Renderer()
    info = parse(json.dumps({"model": "m", "messages": [USER]}).encode(), Endpoint.CHAT)
    assert renderer.unseen.of(info, MODEL) is info
    await renderer.unseen.settled()
    assert not renderer.asked
