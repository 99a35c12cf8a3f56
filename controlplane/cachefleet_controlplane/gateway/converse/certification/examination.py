"""The examination of a render profile: the chats, and the verdict on the answers (A21). Pure.

Chats have several turns and are made from a seed: with and without a system message, in several scripts, some long,
with text that looks like markup. Each turn is rendered twice and keyed; the last of a chat is also served.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final

Message = Mapping[str, str]

MAX_CHATS: Final = 1000
DEFAULT_CHATS: Final = 20
_WORDS: Final = (
    *(
        "the",
        "cache",
        "and",
        "  two  spaces",
        "naïve",
        "Größe",
        "данные",
        "数据",
        "キャッシュ",
        "🙂",
        "👩‍👩‍👧",
        "e\u0301",
    ),
    *("\n\n", "\t", "{}", "[1, 2]", "<b>", "</think>", "assistant\n", "user:", "<|x|>", "```python\nprint(1)\n```"),
    *("1234567890", "don't", "…", "\u200b", "مرحبا", "a" * 40),
)
_LONG: Final = 0.2
"""The share of messages that are long."""


@dataclass(frozen=True, slots=True)
class TurnSeen:
    """One turn as it was rendered: token ids as unsigned arrays, None where there was no answer."""

    first: array[int] | None
    second: array[int] | None
    keyed: array[int] | None = None
    boundaries: tuple[int, ...] = ()
    served: array[int] | None = None
    last: bool = False
    """The last turn of its chat, which is served as well."""


@dataclass(frozen=True, slots=True)
class CertificationVerdict:
    """Whether turns can be continued under a profile; ``reason`` is "" where they can."""

    certified: bool
    reason: str
    counts: Mapping[str, int]


def chats(seed: int, count: int, *, longest: int = 8192) -> Iterator[list[Message]]:
    """Yield chats that end with a user's message, equal for equal seeds; ``longest``: tokens that a worker takes."""
    words = max(4, min(600, longest // 200))
    chance = Random(seed)  # noqa: S311 # reproducible on purpose
    for _ in range(count):
        messages = [_message(chance, "system", words)] if chance.random() < 0.5 else []
        for _ in range(chance.randint(1, 4)):
            messages += [_message(chance, "user", words), _message(chance, "assistant", words)]
        yield [*messages, _message(chance, "user", words)]


def turns(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages of a chat as each of its turns sends them."""
    for end, message in enumerate(messages, 1):
        if message["role"] == "user":
            yield list(messages[:end])


def judged(examined: Sequence[Sequence[TurnSeen]]) -> CertificationVerdict:
    """Return the verdict on all chats, each a sequence of turns."""
    counts: Counter[str] = Counter(chats=len(examined))
    for seen in examined:
        for turn in seen:
            counts.update(_of_turn(turn))
        for before, after in pairwise(seen):
            counts.update(_of_two(before, after))
    reason = next((text for name, text in _FAULTS if counts[name]), "")
    if not reason and not counts["proven"]:
        reason = "no boundary was found again in the next turn"
    return CertificationVerdict(not reason, reason, dict(sorted(counts.items())))


_FAULTS: Final = (
    ("unrendered", "a turn could not be rendered"),
    ("unstable", "one turn was rendered to two different prompts"),
    ("unkeyed", "the workers' plugin gave no keys, so there are no boundaries"),
    ("keyed_otherwise", "the plugin's ids are not those of the render route"),
    ("served_otherwise", "the engine saw other ids than were rendered"),
    ("unserved", "a chat could not be served"),
)
"""Counts that refuse a profile, and their reasons; the first one counts."""


def _of_turn(turn: TurnSeen) -> list[str]:
    found = ["turns"]
    if turn.first is None or turn.second is None:
        return [*found, "unrendered"]
    found += ["unstable"] if turn.first != turn.second else []
    if turn.keyed is None:
        found.append("unkeyed")
    elif turn.keyed != turn.first:
        found.append("keyed_otherwise")
    if turn.last and turn.served is None:
        found.append("unserved")
    elif turn.last:
        found.append("served" if turn.served == turn.first else "served_otherwise")
    return found


def _of_two(before: TurnSeen, after: TurnSeen) -> list[str]:
    """Whether the prefix that a handle would stand for, with the rest after it, is the next turn's prompt."""
    if before.first is None or after.first is None or not before.boundaries:
        return []
    end = before.boundaries[-1]
    prefix, suffix = before.first[:end], after.first[end:]
    proven = end in after.boundaries and bool(suffix) and prefix + suffix == after.first
    return ["proven"] if proven else ["backtracked"]


def _message(chance: Random, role: str, most: int) -> Message:
    words = most if chance.random() < _LONG else chance.randint(1, min(30, max(2, most // 2)))
    return {"role": role, "content": " ".join(chance.choice(_WORDS) for _ in range(words))}
