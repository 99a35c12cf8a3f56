"""What decisions rest on of a prompt: its blocks, else its text, else nothing but load. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.rendering.keying import Keyed
from cachefleet_controlplane.gateway.rendering.render_ladder import Rung
from cachefleet_controlplane.gateway.rendering.rendering_result import RenderFailure, Rendering
from cachefleet_controlplane.gateway.rendering.text_keys import Text
from cachefleet_controlplane.routing.decision import Chunks, Knowledge, Prompt
from cachefleet_controlplane.workers.render_profiles import RenderFacts

_TEXTLESS: Final = frozenset({RenderFailure.REFUSED, RenderFailure.MULTIMODAL})
"""Reasons for no ids where the text tells nothing either."""


def known_prompt(
    info: RequestInfo, rendering: Rendering, text: Text, facts: RenderFacts, *, longest: int | None
) -> tuple[Rendering, Prompt]:
    """What decisions rest on: blocks, else the text where it may be used, else load.

    ``longest`` is the most tokens of prompt and answer that any worker takes.
    """
    keyed = rendering.prompt
    chunks = text.measured(keyed.tokens)
    guessed = text.size and (not keyed.block_size or not facts.indexed) and rendering.reason not in _TEXTLESS
    refused = keyed.tokens and longest is not None and keyed.tokens > longest  # by the engine
    if not guessed or refused:
        prompt = _prompt(info, keyed, chunks, longest=longest)
        return rendering, prompt if facts.indexed else replace(prompt, keys=b"", knowledge=Knowledge.LOAD)
    tokens = keyed.tokens or (text.tokens if longest is None else min(text.tokens, longest))
    guess = _prompt(info, Keyed(tokens), chunks, longest=longest)
    guess = replace(guess, block_size=facts.block_size, knowledge=Knowledge.APPROXIMATE)
    return replace(rendering, rung=Rung.TEXT) if rendering.rung is Rung.NONE else rendering, guess


def _prompt(info: RequestInfo, keyed: Keyed, chunks: Chunks, *, longest: int | None) -> Prompt:
    """With the answer bounded so that it and the prompt are ``longest`` tokens, the most that any worker takes."""
    most = info.max_tokens if longest is None else max(0, longest - keyed.tokens)
    return Prompt(
        tokens=keyed.tokens,
        keys=keyed.keys,
        block_size=keyed.block_size,
        max_tokens=min(info.max_tokens, most),
        knowledge=Knowledge.EXACT if keyed.block_size else Knowledge.LOAD,
        chunks=chunks,
    )
