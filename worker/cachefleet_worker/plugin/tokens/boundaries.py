"""Positions in a rendered chat at which a prefix may end: one past a token that starts a message. Pure.

These are proposals. A template may render earlier messages anew in a later turn (reasoning dropped, tools moved), so a
boundary is used only after ``verified`` has seen the next turn's ids. Never inside a message's text: the ids of two
halves need not be the halves of the ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Position = int
"""A count of leading tokens."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a family of templates marks messages."""

    name: str
    starts: tuple[str, ...]
    """Tokens that start a message."""
    unless: str = ""
    """A token that shows that the template moves early messages; ``instead`` marks what stays."""
    instead: tuple[str, ...] = ()
    text: str = ""
    """Text that the template must contain too."""


STYLES: Final = (
    Style("harmony", ("<|start|>",)),
    Style("chatml", ("<|im_start|>",)),
    Style("kimi", ("<|im_system|>", "<|im_user|>", "<|im_assistant|>")),
    Style("llama-3", ("<|start_header_id|>",)),
    Style("llama-4", ("<|header_start|>",)),
    Style("gemma", ("<start_of_turn>",)),
    Style("gemma-4", ("<|turn>",)),
    Style("granite", ("<|start_of_role|>",)),
    Style("command-r", ("<|START_OF_TURN_TOKEN|>",)),
    Style("deepseek", ("<｜User｜>", "<｜Assistant｜>")),  # noqa: RUF001 - its own vertical bars
    Style("phi-3", ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|observation|>")),
    # Tools are written before the last user message, wherever that is; what ended with </s> stays.
    Style("mistral", ("[INST]",), unless="[AVAILABLE_TOOLS]", instead=("</s>",)),
    # Each exchange begins with a new <s>; [INST] is ordinary text here.
    Style("llama-2", ("<s>",), text="[INST]"),
)
_BOS: Final = "<s>"


@dataclass(frozen=True, slots=True)
class Marks:
    """A style's tokens as one tokenizer's ids."""

    style: str
    starts: frozenset[int]
    unless: int | None = None
    instead: frozenset[int] = frozenset()


def detect(tokens: Mapping[str, int], template: str) -> Marks | None:
    """The marks of a tokenizer with these added tokens and chat template ("" for none); None where no style fits.

    A style fits where its tokens exist and the template, if there is one, writes them.
    """
    for style in STYLES:
        starts = [name for name in style.starts if name in tokens and (not template or _writes(template, name))]
        if starts and style.text in template:
            return _marks(style, starts, tokens)
    return None


def _writes(template: str, name: str) -> bool:
    return name in template or (name == _BOS and "bos_token" in template)


def _marks(style: Style, starts: Sequence[str], tokens: Mapping[str, int]) -> Marks:
    return Marks(
        style.name,
        frozenset(tokens[name] for name in starts),
        tokens.get(style.unless),
        frozenset(tokens[name] for name in style.instead if name in tokens),
    )


def propose(ids: Sequence[int], marks: Marks | None, *, reused: Position = 0) -> list[Position]:
    """Positions in ``ids`` at which a prefix may end, ascending; the last is the one to snapshot.

    None of them is at the very end (nothing would follow) or within the first ``reused`` tokens.
    """
    if marks is None:
        return []
    packed = array("I", ids).tobytes()  # searching bytes takes about half the time of comparing integers
    moving = marks.unless is not None and any(_after(packed, marks.unless))
    starts = marks.instead if moving else marks.starts
    found = sorted(position for start in starts for position in _after(packed, start))
    return [position for position in found if reused < position < len(ids)]


def _after(packed: bytes, token: int) -> Iterator[Position]:
    """Positions one past each ``token`` in packed 32-bit ids."""
    wanted, width = array("I", [token]).tobytes(), array("I").itemsize
    place = packed.find(wanted)
    while place >= 0:
        if place % width == 0:
            yield place // width + 1
        place = packed.find(wanted, place + 1)


def verified(boundary: Position, previous: Sequence[int], fresh: Sequence[int]) -> bool:
    """Whether the first ``boundary`` ids of the previous render begin the fresh one, which is longer."""
    # As lists, since the two may be of different types.
    return 0 < boundary < len(fresh) and list(previous[:boundary]) == list(fresh[:boundary])


def deepest(boundaries: Sequence[Position], previous: Sequence[int], fresh: Sequence[int]) -> Position | None:
    """The largest of ``boundaries`` that is verified; None where none is."""
    good = (boundary for boundary in sorted(boundaries, reverse=True) if verified(boundary, previous, fresh))
    return next(good, None)
