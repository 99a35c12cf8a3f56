"""What each cause in the prompt is, and what to do about it, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause

WHY: Final[Mapping[PromptCause, str]] = {
    PromptCause.TIME: "A time or date in it is another than in the nearest earlier prompt.",
    PromptCause.ID: "An id or a counter in it is another than in the nearest earlier prompt.",
    PromptCause.TOOL_ORDER: "The same tools come in another order.",
    PromptCause.TOOLS: "A tool was added, removed or described otherwise.",
    PromptCause.SYSTEM_PROMPT: "The system prompt is another, and what follows is the same.",
    PromptCause.IMAGE: "An image or other medium is another, is new or is gone.",
    PromptCause.PARAMETERS: "Members of the request have the template render the same messages otherwise.",
    PromptCause.SALT: "The same prompt came under another salt, whose blocks are others.",
    PromptCause.REASONING_DROPPED: "Reasoning of an earlier turn is not rendered any more.",
    PromptCause.HISTORY_DROPPED: "Earlier messages were dropped, and later ones kept.",
    PromptCause.HISTORY_EDITED: "An earlier message was changed, and later ones are the same.",
    PromptCause.TEMPLATE: "The template renders the same messages otherwise than before.",
    PromptCause.BLOCK_STRADDLE: "The common beginning ends within a block.",
    PromptCause.REPEATED: "An earlier prompt had it, too; what became of that is not remembered.",
    PromptCause.NEW: "No earlier prompt had it.",
    PromptCause.NOT_EXAMINED: "Too few tokens to look for a cause, or a body whose parts are not known.",
}
LIKELY: Final[Mapping[str, str]] = {
    PromptCause.TIME: "A time or date: what follows is computed again whenever it is another.",
    PromptCause.ID: "An id or a counter: what follows is computed again whenever it is another.",
    PromptCause.IMAGE: "An image or other medium: what follows is computed again whenever it is another.",
    PromptCause.PARAMETERS: "Members that the template reads: the whole prompt is another where they are others.",
    PromptCause.SALT: "A salt of its own: blocks are shared with requests of the same one alone.",
    PromptCause.NOT_EXAMINED: "The parts of this prompt are not known: too many, too large, or none.",
    "last_block": "What follows the last whole block, and the last token: no engine serves these.",
}
"""Why something keeps tokens from being served, told by its form alone."""
_MENDS: Final[Mapping[PromptCause, str]] = {
    PromptCause.TIME: "move the time or date in {part} behind what stays the same, or round it to the day",
    PromptCause.ID: "move the id or counter in {part} behind what stays the same, or leave it out",
    PromptCause.TOOL_ORDER: "send the tools in one order, such as by name",
    PromptCause.TOOLS: "send the same tools with each request; forbid some with tool_choice",
    PromptCause.SYSTEM_PROMPT: "keep the system prompt, and add what changes as a later message",
    PromptCause.IMAGE: "put images behind the text that stays the same",
    PromptCause.PARAMETERS: "send the same chat_template_kwargs, reasoning effort and documents with each request",
    PromptCause.SALT: "raise salt versions, and send cache_salt, only where blocks must not be shared",
    PromptCause.REASONING_DROPPED: "send earlier reasoning back, with a template that keeps it",
    PromptCause.HISTORY_DROPPED: "drop history seldom and in large steps, or summarise it in one message",
    PromptCause.HISTORY_EDITED: "send earlier messages back unchanged, to the last blank",
    PromptCause.TEMPLATE: "use a chat template that only appends: no date, and tools before the first message",
    PromptCause.BLOCK_STRADDLE: "lengthen the common beginning to whole blocks, or choose a smaller engine.blockSize",
}
_PLACES: Final[Mapping[str, str]] = {
    "system": "the system prompt",
    "tools": "the tools",
    "message": "a message",
    "reasoning": "the reasoning",
    "tool_calls": "a tool call",
}


def mend(cause: PromptCause, part: str) -> str:
    """What its author can do; "" where there is nothing to do."""
    return _MENDS.get(cause, "").format(part=_PLACES.get(part, "the prompt"))
