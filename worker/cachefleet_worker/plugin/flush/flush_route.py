"""``POST /v1/fleet/flush``: from a request (cachefleet_core/engine/cache_flush.py) to the engines' answers.

The prompt that blocks are to begin with is rendered by vLLM itself, as for block keys.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cachefleet_core.engine.cache_flush import FlushAnswer, FlushAsk, Flushed
from cachefleet_worker.plugin.asgi import HttpError
from cachefleet_worker.plugin.engine_calls import EngineCalls
from cachefleet_worker.plugin.flush.selection import Beginning, Selector
from cachefleet_worker.plugin.keys.key_cache import TokenIdError, packed
from cachefleet_worker.plugin.keys.render import Prompt, PromptSource


def read_ask(body: bytes) -> FlushAsk:
    """The request of a body. HttpError 400."""
    try:
        ask = msgspec.json.decode(body, type=FlushAsk)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, "bad_flush", str(error)) from None
    if not ask.named:
        raise HttpError(400, "bad_flush", "name salts, adapter or prompt; or everything")
    return ask


async def flushed(ask: FlushAsk, calls: EngineCalls, source: PromptSource | None, *, block_size: int) -> FlushAnswer:
    """Have the engines flush what is asked. HttpError, RefusedError, EngineCallError."""
    beginnings = None if ask.prompt is None else await _beginnings(ask.prompt, source, block_size)
    salts = None if ask.salts is None else frozenset(ask.salts)
    selector = Selector(salts=salts, adapter=ask.adapter, beginnings=beginnings, dry_run=ask.dry_run)
    payload = msgspec.msgpack.encode(selector)
    told: dict[int, Any]
    if ask.rank is None:
        told = await calls.all("flush", payload)
    else:
        told = {ask.rank: await calls.one(ask.rank, "flush", payload)}
    ranks = {rank: msgspec.convert(each, Flushed) for rank, each in told.items()}
    if reason := next((each.reason for each in ranks.values() if each.reason), ""):
        raise HttpError(503, "flush_off", reason)
    return FlushAnswer(ranks)


async def _beginnings(body: dict[str, Any], source: PromptSource | None, block_size: int) -> tuple[Beginning, ...]:
    if source is None:
        raise HttpError(503, "keys_off", "this server renders no prompts: block keys are off, see its capabilities")
    rendered = await source.render(msgspec.json.encode(body))
    return tuple(_beginning(prompt, block_size) for prompt in rendered.prompts)


def _beginning(prompt: Prompt, block_size: int) -> Beginning:
    tokens = min(prompt.plain, len(prompt.ids))
    if tokens < block_size:
        said = f"the prompt has {tokens} tokens, fewer than a block of {block_size}: no block begins with it"
        raise HttpError(422, "short_prompt", said)
    try:
        ids = packed(prompt.ids)[:tokens].tobytes()
    except TokenIdError as error:
        raise HttpError(400, "bad_token_ids", str(error)) from None
    return Beginning(ids, tuple((one.identifier, one.offset, one.length) for one in prompt.media))
