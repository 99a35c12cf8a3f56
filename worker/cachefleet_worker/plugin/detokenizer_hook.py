"""The hook in vLLM's detokenizer: an answer's text begins from the prompt's last tokens, not from all of them.

vLLM decodes the whole prompt for the first token of each answer, twice, only to know what text that token adds: 30 ms
for 64k tokens. Decoding goes on in the same way after fewer tokens, where decoding a sequence is decoding its parts:
with the decoders named here, from a token that begins a character of its own. Anything else is left to vLLM.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings

FEATURE: Final = "detokenizer"
MOST: Final = 32
"""Tokens that decoding begins from."""
LEAST: Final = 8
"""Fewer may show no text, where all of them are markers."""
_SHORT: Final = 256
"""Prompts of fewer tokens are left as they are."""
_STOCK: Final = "cachefleet_unhooked"
_BYTE: Final = re.compile(r"<0x[0-9A-F]{2}>")
_REPLACED: Final = "\ufffd"
_LOCAL: Final = frozenset({"ByteLevel", "Metaspace"})
_SENTENCE: Final = ["Replace", "ByteFallback", "Fuse"]


def install(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> None:
    """Hook vLLM's detokenizer in this process, unless that is switched off."""
    if off := settings.switched_off(FEATURE):
        faults.off(FEATURE, off)
        return
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer  # noqa: PLC0415 - only where vLLM runs

    patch(FastIncrementalDetokenizer, faults)
    capabilities.add(FEATURE, "on")


def patch(detokenizer: type[Any], faults: Faults) -> None:
    """Hook ``detokenizer``; an earlier hook is replaced."""
    wrap_method(detokenizer, "__init__", functools.partial(_hooked, faults), mark=_STOCK)


def _hooked(faults: Faults, stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def init(self: Any, tokenizer: Any, request: Any) -> None:
        stock(self, tokenizer, request)
        ids = request.prompt_token_ids
        if ids is None or len(ids) < _SHORT or not faults.on(FEATURE):
            return
        with faults.guard(FEATURE):
            if last := beginning(self.tokenizer, ids, skip_special_tokens=self.skip_special_tokens):
                self.stream = type(self.stream)(ids=last, skip_special_tokens=self.skip_special_tokens)

    return init


def beginning(tokenizer: Any, ids: Sequence[int], *, skip_special_tokens: bool) -> list[int]:
    """The last ids, after which text goes on as after all of them; none where that is not known."""
    if not _local(tokenizer.decoder):
        return []
    for start in range(max(0, len(ids) - MOST), len(ids) - LEAST):
        if _begins(tokenizer, ids[start], skip_special_tokens=skip_special_tokens):
            last = list(ids[start:])
            text = tokenizer.decode(last, skip_special_tokens=skip_special_tokens)
            return last if text and not text.endswith(_REPLACED) else []
    return []


def _local(decoder: Any) -> bool:
    """Whether decoding a sequence is decoding its parts: nothing reaches beyond neighbours, but for what is first."""
    if decoder is None:
        return True
    described = json.loads(decoder.__getstate__())
    if described["type"] != "Sequence":
        return described["type"] in _LOCAL
    parts = described["decoders"]
    ends = parts[len(_SENTENCE) :]
    return [part["type"] for part in parts[: len(_SENTENCE)]] == _SENTENCE and (
        not ends or (len(ends) == 1 and ends[0]["type"] == "Strip" and not ends[0]["stop"])
    )


def _begins(tokenizer: Any, token: int, *, skip_special_tokens: bool) -> bool:
    """Whether a token is shown, and its text begins with a character of its own."""
    if _BYTE.fullmatch(tokenizer.id_to_token(token) or ""):
        return False
    text = tokenizer.decode([token], skip_special_tokens=skip_special_tokens)
    return bool(text) and not text.startswith(_REPLACED)
