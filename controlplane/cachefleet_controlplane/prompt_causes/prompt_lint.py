"""What of a prompt will not be served from cache, told before it is sent. Pure, but for native code that reads it.

Two things tell: the form of its words and parts, and what it changes of its nearest earlier relative, by the same rules
as of requests that have ended. What is known by its form alone may stay the same for ever, so a finding is a warning
only where a word looks like the time or id of one request, or where something has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from cachefleet_native import Ask, PromptShape, volatile_words
from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.prompt_causes.mends import LIKELY, WHY, mend
from cachefleet_controlplane.prompt_causes.prompt_cause import (
    LEADING,
    LEAST_TOKENS,
    NOT_MENDED,
    PARTS,
    ROLES,
    Examined,
    PartKind,
    PromptCause,
    Relation,
    prompt_losses,
)
from cachefleet_controlplane.prompt_causes.prompt_shapes import PromptShapes

BYTES_A_TOKEN: Final = 4
"""Assumed where no tokenizer is asked."""
BLOCK_SIZE: Final = 16
"""Tokens of a block where no engine is asked: an engine's default on a GPU."""
LAST_BLOCK: Final = "last_block"
"""A cause besides those of ``PromptCause``: the end of a prompt, which no engine serves."""
FIRST_BYTES: Final = 512
"""Of a prompt without tools and system text: a time among them is its author's, later ones are its content."""


class LintSeverity(StrEnum):
    """How much a finding matters."""

    WARNING = "warning"
    """It has changed, or is another in each request."""
    NOTE = "note"
    """It may change, or nothing can be done about it."""


class PromptSize(Struct, frozen=True, kw_only=True):
    """Length of a prompt, in tokens."""

    tokens: int
    block_size: int
    exact: bool
    """By the tokenizer; else by bytes."""

    @property
    def servable(self) -> int:
        """Tokens of the whole blocks before the last token: the most that an engine serves from cache."""
        return max(0, (self.tokens - 1) // self.block_size) * self.block_size

    @classmethod
    def estimated(cls, shape: PromptShape | None, block_size: int) -> PromptSize:
        """By the bytes of its text."""
        tokens = 0 if shape is None else max(1, round(_text_bytes(shape) / BYTES_A_TOKEN))
        return cls(tokens=tokens, block_size=block_size, exact=False)


class LintFinding(Struct, frozen=True, kw_only=True):
    """One thing that keeps tokens from being served from cache."""

    severity: LintSeverity
    cause: str
    """A ``PromptCause``, or LAST_BLOCK."""
    compared: bool
    """It differs from the earlier prompt; else it is told by its form."""
    part: str = ""
    role: str = ""
    index: int = 0
    """Its message, or its place among the tools."""
    character: int | None = None
    """Characters of the part before it; None where that is not known."""
    position: int
    """The first token that is lost, to the block."""
    tokens: int
    """Tokens that are lost on each change, to the last whole block."""
    why: str
    mend: str


class LintReport(Struct, frozen=True, kw_only=True):
    """What is found in one prompt; nothing of its text is in it."""

    prompt_tokens: int
    block_size: int
    exact: bool
    """Tokens are counted; else they are estimated by bytes."""
    compared: bool
    """There was an earlier prompt to compare with."""
    findings: tuple[LintFinding, ...]

    @property
    def warnings(self) -> int:
        """How many findings are more than notes."""
        return sum(one.severity is LintSeverity.WARNING for one in self.findings)


def lint(
    ask: Ask, shape: PromptShape | None, size: PromptSize, relation: Relation | None, *, salted: bool = False
) -> LintReport:
    """What keeps a prompt's tokens from being served, the dearest first; ``salted``: it names a salt of its own.

    ``relation`` is to its nearest earlier prompt, None where there is none to compare with.
    """
    if shape is None:
        found = [_finding(PromptCause.NOT_EXAMINED, 0, size.servable)]
    else:
        changed = list(_changed(relation, size))
        found = [*changed, *_volatile(ask, shape, size, relation), *_of_form(shape, size, salted=salted), *_end(size)]
    found.sort(key=lambda one: (one.severity is LintSeverity.NOTE, -one.tokens, one.position))
    return LintReport(
        prompt_tokens=size.tokens,
        block_size=size.block_size,
        exact=size.exact,
        compared=relation is not None,
        findings=tuple(found),
    )


def lint_alone(ask: Ask, earlier: Ask | None, *, block_size: int, salted: bool = False) -> LintReport:
    """A request's lint without a fleet: by its form, and beside an earlier one; tokens are estimated by bytes.

    Block keys are not known, so where the two part is told by their parts: within a part that differs, its beginning.
    """
    shapes = PromptShapes()
    shape = shapes.read.shape(ask, "")
    size = PromptSize.estimated(shape, block_size)
    relation = None
    if shape is not None and earlier is not None and (before := shapes.read.shape(earlier, "")) is not None:
        shapes.keep("", before, b"", PromptSize.estimated(before, block_size).tokens)
        relation = shapes.nearest("", shape, b"")
    if relation is not None:
        tokens = relation.before * size.tokens // max(1, relation.before + relation.after)
        other = relation.parameters or relation.salt
        relation = replace(relation, blocks=0 if other else tokens // block_size)
    return lint(ask, shape, size, relation, salted=salted)


def _changed(relation: Relation | None, size: PromptSize) -> Iterator[LintFinding]:
    """What is another than in the earlier prompt, by the rules for requests that have ended."""
    if relation is None:
        return
    begins = min(relation.blocks * size.block_size, size.servable)
    prompt = Examined(
        prompt_tokens=size.tokens,
        block_size=size.block_size,
        first_seen=size.servable - begins,
        servable=size.servable,
    )
    for loss in prompt_losses(relation, prompt):
        if loss.cause not in NOT_MENDED:
            place = (relation.part, relation.role, relation.index)
            yield _finding(loss.cause, begins, loss.tokens, place, severity=LintSeverity.WARNING, compared=True)


def _volatile(ask: Ask, shape: PromptShape, size: PromptSize, relation: Relation | None) -> Iterator[LintFinding]:
    """The first time and the first id of each part that should stay the same."""
    told = set()
    if relation is not None and relation.difference is not relation.difference.NONE:
        told = {(relation.part, relation.index, cause) for cause in (PromptCause.TIME, PromptCause.ID)}
    for (kind, role, index), (is_time, sure), (character, before) in volatile_words(ask):
        part, cause = PartKind(kind), PromptCause.TIME if is_time else PromptCause.ID
        begins, tokens = _behind(before, shape, size)
        if (
            (part, index, cause) in told
            or tokens < LEAST_TOKENS
            or not _stays(part, shape, before, dated=is_time and sure)
        ):
            continue
        told.add((part, index, cause))
        same = relation is not None and before < relation.before
        severity = LintSeverity.WARNING if sure and not same else LintSeverity.NOTE
        yield _finding(cause, begins, tokens, (part, role, index), severity=severity, character=character)


def _stays(part: PartKind, shape: PromptShape, before: int, *, dated: bool) -> bool:
    """Whether a part should be the same in the next prompt at that place: messages are new by their nature."""
    if part in LEADING:
        return True
    leads = PartKind(shape.parts[0][0]) not in LEADING
    return leads and dated and part is PartKind.TEXT and before < FIRST_BYTES


def _of_form(shape: PromptShape, size: PromptSize, *, salted: bool) -> Iterator[LintFinding]:
    """What changes all that follows where it is another: a medium, parameters, a salt."""
    before = 0
    for kind, role, index, length in shape.parts:
        if kind == PartKind.MEDIA:
            begins, tokens = _behind(before, shape, size)
            if tokens >= LEAST_TOKENS:
                yield _finding(PromptCause.IMAGE, begins, tokens, (PartKind.MEDIA, role, index))
            break
        before += length
    if shape.parameters:
        yield _finding(PromptCause.PARAMETERS, 0, size.servable)
    if salted:
        yield _finding(PromptCause.SALT, 0, size.servable)


def _end(size: PromptSize) -> Iterator[LintFinding]:
    """What follows the last whole block; an estimate does not tell."""
    if size.exact and size.tokens:
        yield _finding(LAST_BLOCK, size.servable, size.tokens - size.servable)


def _behind(before: int, shape: PromptShape, size: PromptSize) -> tuple[int, int]:
    """The first token lost where a prompt changes behind so many bytes, to the block, and how many are."""
    at = before * size.tokens // max(1, _text_bytes(shape))
    begins = min(at // size.block_size * size.block_size, size.servable)
    return begins, size.servable - begins


def _text_bytes(shape: PromptShape) -> int:
    """Without media, whose bytes say nothing of their tokens."""
    return sum(length for kind, _, _, length in shape.parts if kind != PartKind.MEDIA)


def _finding(
    cause: str,
    position: int,
    tokens: int,
    place: tuple[PartKind, int, int] = (PartKind.NONE, 0, 0),
    *,
    severity: LintSeverity = LintSeverity.NOTE,
    character: int | None = None,
    compared: bool = False,
) -> LintFinding:
    part, role, index = place
    named = PARTS[part]
    known = PromptCause(cause) if cause != LAST_BLOCK else None
    return LintFinding(
        severity=severity,
        cause=str(cause),
        compared=compared,
        part=named,
        role=ROLES[role] if named else "",
        index=index,
        character=character,
        position=position,
        tokens=tokens,
        why=WHY[known] if compared and known else LIKELY[cause],
        mend=mend(known, named) if known else "",
    )
