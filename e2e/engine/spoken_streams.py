"""What streams of any API say, whatever pieces vLLM has cut it into: tokens that come at once make one piece."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from cachefleet_core.engine.answer_replay import COMMENT
from cachefleet_runtime.sse import DONE, event_data

_PIECES: Final = frozenset({"content", "reasoning", "arguments", "text", "thinking", "partial_json", "delta"})
"""Members of events that are pieces of what is said."""
_COUNTED: Final = frozenset({"sequence_number"})
_PLACES: Final = ("type", "index", "item_id", "output_index")

Said = tuple[dict[str, str], set[tuple[str, str]]]


def plain(stream: list[bytes]) -> list[bytes]:
    """The events that a client sees."""
    return [event for event in stream if not event.startswith(COMMENT)]


def said(stream: list[bytes]) -> Said:
    """The pieces, put together by their places, and everything else that is in any event."""
    told, rest = defaultdict[str, str](str), set[tuple[str, str]]()
    for event in plain(stream):
        payload = event_data(event)
        if payload == DONE:
            rest.add(("", "done"))
            continue
        for place, name, value in _leaves(json.loads(payload)):
            if isinstance(value, str) and name in _PIECES:
                told[place] += value
            elif value not in (None, "", {}) and name not in _COUNTED:
                rest.add((place, repr(value)))
    return {place: text for place, text in told.items() if text}, rest


def _leaves(value: Any, place: str = "", name: str = "") -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, dict):
        here = place + "".join(f"[{value[each]}]" for each in _PLACES if each in value)
        for key, each in value.items():
            yield from _leaves(each, f"{here}.{key}", key)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{place}#{number}", name)
    else:
        yield place, name, value
