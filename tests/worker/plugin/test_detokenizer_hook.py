"""Text after the prompt's last tokens is text after all of them: for every style of tokenizer, whatever the tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.detokenizer_hook import FEATURE, LEAST, MOST, beginning, patch
from cachefleet_worker.plugin.plugin_faults import Faults
from tests.worker.plugin.tokens.styles import STYLES, WORLD, trained

SENTENCE = ("mistral", "gemma", "llama2")
"""Styles whose tokenizers are trained here without the decoder that such models come with."""


def tokenizer_of(style: str) -> Tokenizer:
    made = trained(style)
    if style in SENTENCE:
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        made.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if style == "llama2" else [])])
    return made


def texts(tokenizer: Tokenizer, prompt: list[int], answer: list[int], *, skip: bool) -> list[object]:
    """What each token of an answer adds, or that it cannot be decoded."""
    stream = decoders.DecodeStream(ids=prompt, skip_special_tokens=skip)
    found: list[object] = []
    for token in answer:
        try:
            found.append(stream.step(tokenizer, token))
        except Exception as error:  # noqa: BLE001 - the library's own kind is one
            return [*found, str(error).partition(":")[0]]
    return found


@pytest.mark.parametrize("style", sorted(STYLES))
@given(data=st.data())
def test_text_goes_on_as_after_the_whole_prompt(style: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(style)
    some = st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), min_size=MOST, max_size=3 * MOST)
    words = st.lists(st.sampled_from([*WORLD, "def f(x):\n    return x\n", " a", "\n"]), min_size=12, max_size=30)
    written = words.map(lambda parts: list(tokenizer.encode("".join(parts)).ids))
    prompt, answer = data.draw(written | some), data.draw(some | written)
    skip = data.draw(st.booleans())
    last = beginning(tokenizer, prompt, skip_special_tokens=skip)
    if last:
        assert LEAST < len(last) <= MOST
        assert texts(tokenizer, last, answer, skip=skip) == texts(tokenizer, prompt, answer, skip=skip)


@pytest.mark.parametrize("style", ["qwen", "llama3", "deepseek", "mistral", "gemma", "llama2"])
def test_a_chat_is_cut(style: str) -> None:
    tokenizer = tokenizer_of(style)
    ids = tokenizer.encode("".join(WORLD) * 3 + "\nWhat does this function return, and where is it called?\n").ids
    assert beginning(tokenizer, ids, skip_special_tokens=True)


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.CTC(), decoders.BPEDecoder()])
def test_what_decodes_otherwise_is_left_to_vllm(decoder: Any) -> None:
    tokenizer = trained("gpt2")
    tokenizer.decoder = decoder
    assert beginning(tokenizer, tokenizer.encode("def f(x): pass\n" * 40).ids, skip_special_tokens=True) == []


class Stock:
    """As vLLM's detokenizer begins."""

    def __init__(self, tokenizer: Tokenizer, request: Any) -> None:
        self.tokenizer = tokenizer
        self.skip_special_tokens = True
        self.stream: Any = decoders.DecodeStream(ids=request.prompt_token_ids, skip_special_tokens=True)
        self.stock = self.stream


def test_a_long_prompt_is_not_decoded_a_short_one_or_none_left_alone() -> None:
    class Detokenizer(Stock):
        pass

    tokenizer, faults = trained("qwen"), Faults(Capabilities())
    patch(Detokenizer, faults)
    ids = tokenizer.encode("def f(x): pass\n" * 200).ids
    for prompt, hooked in ((ids, True), (ids[:100], False), (None, False)):
        made = Detokenizer(tokenizer, SimpleNamespace(prompt_token_ids=prompt))
        assert (made.stream is not made.stock) == hooked
    made = Detokenizer(tokenizer, SimpleNamespace(prompt_token_ids=[10**9] * 300))
    assert made.stream is made.stock
    assert faults.counts == {}
    faults.off(FEATURE, "")
    made = Detokenizer(tokenizer, SimpleNamespace(prompt_token_ids=ids))
    assert made.stream is made.stock
