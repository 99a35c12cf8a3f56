"""Causes of first-seen tokens in the prompt: where it leaves its nearest earlier relative, and by what. Pure.

A prompt and its relative are equal up to the end of their last common block: what the fleet calls first seen begins
there, or later. Of these tokens a cause has as many as both prompts have in common behind that place, for so many would
have been served without the change; the rest is new text. Blocks are counted exactly. Of parts behind the change only
the size in bytes is known, so their tokens are in proportion to the whole prompt's, and a cause is named only where it
has LEAST_TOKENS. All causes add up to the first-seen tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final

from msgspec import Struct

LEAST_TOKENS: Final = 64
"""Tokens from which on a cause is looked for, and named."""
_SURE: Final = 0.6
"""Of an estimate of tokens by bytes, what is relied on: parts differ in their bytes a token."""
_MOSTLY: Final = 0.5
"""Share of a prompt's text from which on its tokens are estimated by bytes."""


class PromptCause(StrEnum):
    """What changed; the value is a metric's label."""

    TIME = "time"
    """A time or date in a text."""
    ID = "id"
    """An id or a counter in a text."""
    TOOL_ORDER = "tool_order"
    TOOLS = "tools"
    """A tool was added, removed or described otherwise."""
    SYSTEM_PROMPT = "system_prompt"
    IMAGE = "image"
    PARAMETERS = "parameters"
    """Members of the request that change what the template makes of the same messages."""
    SALT = "salt"
    REASONING_DROPPED = "reasoning_dropped"
    HISTORY_DROPPED = "history_dropped"
    HISTORY_EDITED = "history_edited"
    TEMPLATE = "template"
    """The template renders the same messages otherwise than before."""
    BLOCK_STRADDLE = "block_straddle"
    """The common beginning ends within a block, which is computed with what follows."""
    REPEATED = "repeated"
    """An earlier prompt had them, too; what became of them is not remembered."""
    NEW = "new"
    """No earlier prompt had them, or the change is worth fewer than LEAST_TOKENS."""
    NOT_EXAMINED = "not_examined"
    """Fewer than LEAST_TOKENS, or a body whose parts are not known."""


NOT_MENDED: Final = (PromptCause.NEW, PromptCause.REPEATED, PromptCause.NOT_EXAMINED)
"""Causes for which a prompt's author can do nothing."""


class PartKind(IntEnum):
    """Parts of a prompt, by native code's numbers."""

    NONE = 0
    TOOL = 1
    SYSTEM = 2
    TEXT = 3
    REASONING = 4
    CALLS = 5
    MEDIA = 6


class Difference(IntEnum):
    """What the first part that differs tells, by native code's numbers."""

    NONE = 0
    TOOL_ORDER = 1
    TOOLS = 2
    SYSTEM = 3
    TIME = 4
    ID = 5
    IMAGE = 6
    REASONING = 7
    DROPPED = 8
    EDITED = 9
    BRANCH = 10


_CAUSES: Final[Mapping[Difference, PromptCause]] = {
    Difference.TOOL_ORDER: PromptCause.TOOL_ORDER,
    Difference.TOOLS: PromptCause.TOOLS,
    Difference.SYSTEM: PromptCause.SYSTEM_PROMPT,
    Difference.TIME: PromptCause.TIME,
    Difference.ID: PromptCause.ID,
    Difference.IMAGE: PromptCause.IMAGE,
    Difference.REASONING: PromptCause.REASONING_DROPPED,
    Difference.DROPPED: PromptCause.HISTORY_DROPPED,
    Difference.EDITED: PromptCause.HISTORY_EDITED,
}
"""Differences of parts that can be mended; of the others the template may tell."""
_BY_NUMBER: Final = tuple([_CAUSES.get(difference) for difference in Difference])
"""The same by their numbers: a member of an enumeration is slow to hash."""
LEADING: Final = (PartKind.TOOL, PartKind.SYSTEM)
"""Parts whose order in the prompt is the template's: some write tools first, others the system text."""
ROLES: Final = ("", "system", "user", "assistant", "tool")
"""Of messages, by native code's numbers."""
PARTS: Final[Mapping[PartKind, str]] = {
    PartKind.NONE: "",
    PartKind.TOOL: "tools",
    PartKind.SYSTEM: "system",
    PartKind.TEXT: "message",
    PartKind.REASONING: "reasoning",
    PartKind.CALLS: "tool_calls",
    PartKind.MEDIA: "media",
}
"""Their names in answers."""


class Relation(Struct, frozen=True, gc=False):
    """A prompt against its nearest earlier one."""

    blocks: int
    """Whole blocks that both begin with."""
    tokens: int
    """Of the earlier prompt."""
    text_bytes: int
    """Of the earlier prompt."""
    before: int
    """Bytes of text before the difference."""
    after: int
    """Bytes from there on."""
    same: int
    """Those of them that the earlier prompt has, too."""
    salt: bool = False
    """It is another."""
    parameters: bool = False
    """They are others."""
    reasoned: bool = False
    """The earlier prompt has reasoning in a message."""
    difference: Difference = Difference.NONE
    part: PartKind = PartKind.NONE
    """The part that differs; the last that is equal where none does."""
    role: int = 0
    index: int = 0
    """Its message, or its place among the tools."""
    reach: int = 0
    """Where tools are others, bytes of text up to the end of what both go on with behind them; else 0."""

    @property
    def bytes(self) -> int:
        """Of the prompt's text; at least 1."""
        return (self.before + self.after) or 1


class Examined(Struct, frozen=True, kw_only=True, gc=False):
    """What is known of an ended request's prompt, in tokens."""

    prompt_tokens: int
    block_size: int
    first_seen: int
    """That many tokens, up to ``servable``, no worker held."""
    servable: int


class PromptLoss(Struct, frozen=True, gc=False):
    """So many first-seen tokens have this cause."""

    cause: PromptCause
    tokens: int


def prompt_losses(relation: Relation | None, prompt: Examined) -> tuple[PromptLoss, ...]:
    """The causes of a prompt's first-seen tokens, in its order; their tokens add up to these."""
    first_seen = prompt.first_seen
    if first_seen < LEAST_TOKENS:
        return not_examined(first_seen)
    if relation is None:
        return (PromptLoss(PromptCause.NEW, first_seen),)
    begins, shared = prompt.servable - first_seen, relation.blocks * prompt.block_size
    repeated = min(shared, prompt.servable) - begins if shared > begins else 0
    cause, worth = _cause(relation, prompt, begins)
    charged = min(worth, first_seen - repeated)
    rest = first_seen - repeated - charged
    return _losses((PromptCause.REPEATED, repeated), (cause, charged), (PromptCause.NEW, rest))


def not_examined(tokens: int) -> tuple[PromptLoss, ...]:
    """Of a prompt without a shape."""
    return (PromptLoss(PromptCause.NOT_EXAMINED, tokens),) if tokens else ()


def _losses(*causes: tuple[PromptCause, int]) -> tuple[PromptLoss, ...]:
    return tuple([PromptLoss(cause, tokens) for cause, tokens in causes if tokens])


def _cause(relation: Relation, prompt: Examined, begins: int) -> tuple[PromptCause, int]:
    """The cause, and how many tokens would have been served without it; ``begins`` is where first-seen tokens begin."""
    reach = max(relation.blocks * prompt.block_size, begins)
    if relation.salt or relation.parameters:
        whole = relation.difference is Difference.NONE
        worth = _missing(relation, prompt, reach) if whole else _of_whole(relation, prompt, 0, reach)
        if worth:
            return PromptCause.SALT if relation.salt else PromptCause.PARAMETERS, worth
    cause = _BY_NUMBER[relation.difference]
    if cause is not None:
        worth = _of_reach(relation, prompt, reach) if relation.reach else _of_parts(relation, prompt, reach)
        if worth >= LEAST_TOKENS:
            return cause, worth
    missing = _missing(relation, prompt, reach)
    return _of_template(relation, prompt, missing, reach) if missing else (PromptCause.NEW, 0)


def _of_parts(relation: Relation, prompt: Examined, reach: int) -> int:
    """Tokens from ``reach`` on that would be served were the part that differs the same."""
    same = _same(relation, prompt) if relation.same else 0
    worth = same + _missing(relation, prompt, reach, least_share=0) if relation.part in LEADING else same
    if reach > relation.blocks * prompt.block_size:  # other prompts were served further: what is left counts
        worth = min(worth, _of_whole(relation, prompt, same, reach))
    return worth


def _same(relation: Relation, prompt: Examined) -> int:
    """Tokens behind the difference that both prompts have.

    Where common blocks reach about as far as the difference, they tell how many tokens are behind it: messages often
    have more of them a byte than what leads.
    """
    common, before = relation.blocks * prompt.block_size, relation.before * prompt.prompt_tokens / relation.bytes
    if relation.part not in LEADING and common >= _SURE * before:
        return round(relation.same * (prompt.prompt_tokens - common) / relation.after)
    return round(relation.same * prompt.prompt_tokens / relation.bytes)


def _of_reach(relation: Relation, prompt: Examined, reach: int) -> int:
    """Tokens from ``reach`` up to where a prompt with other tools would be served, had it the same; 0 for few.

    What follows that is the prompt's own: relied on is the least that is before it, as of the whole.
    """
    tail = round((relation.bytes - relation.reach) * prompt.prompt_tokens / relation.bytes)
    end = min(prompt.prompt_tokens - tail, prompt.servable)
    sure = max(end * _SURE, prompt.prompt_tokens - tail / _SURE)
    return end - reach if sure - reach >= LEAST_TOKENS else 0


def _of_whole(relation: Relation, prompt: Examined, same: int, reach: int) -> int:
    """Tokens behind ``reach`` that both prompts have, ``same`` of them behind the difference of parts; 0 for few.

    Relied on is the least that they may be: what both have, and what they have not, may differ in bytes a token.
    """
    both = same + round(relation.before * prompt.prompt_tokens / relation.bytes)
    sure = max(both * _SURE, prompt.prompt_tokens - (prompt.prompt_tokens - both) / _SURE)
    return both - reach if sure - reach >= LEAST_TOKENS else 0


def _of_template(relation: Relation, prompt: Examined, missing: int, reach: int) -> tuple[PromptCause, int]:
    """Why tokens of equal parts, so many from ``reach`` on, are not in common blocks.

    Where parts differ their number is an estimate: a block may be all that is missing though it says some more.
    """
    whole, size = relation.tokens // prompt.block_size, prompt.block_size
    if relation.difference is not Difference.NONE and (missing + reach) * _SURE - reach <= size:
        return PromptCause.BLOCK_STRADDLE, min(missing, size)
    if missing <= size and relation.blocks >= whole:
        return PromptCause.BLOCK_STRADDLE, missing
    if relation.reasoned:
        return PromptCause.REASONING_DROPPED, missing
    return PromptCause.BLOCK_STRADDLE if missing <= size else PromptCause.TEMPLATE, missing


def _missing(relation: Relation, prompt: Examined, reach: int, *, least_share: float = _MOSTLY) -> int:
    """Tokens of the equal parts at the beginning that are behind ``reach``; 0 below LEAST_TOKENS.

    Where the whole earlier prompt is the beginning, its length is known; else the bytes tell, of that prompt of which
    the equal parts are the larger share, which is ``least_share`` or more.
    """
    if relation.difference is Difference.NONE:
        missing = min(relation.tokens, prompt.servable) - reach
        return missing if missing >= LEAST_TOKENS else 0
    own, others = relation.before / relation.bytes, relation.before / (relation.text_bytes or 1)
    share, tokens = (own, prompt.prompt_tokens) if own >= others else (others, relation.tokens)
    equal = share * tokens
    if share < least_share or equal * _SURE - reach < LEAST_TOKENS:
        return 0
    return round(equal) - reach
