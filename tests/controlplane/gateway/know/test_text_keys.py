"""A prompt's text: what it shares with others, and how long it is taken to be."""

from __future__ import annotations

import json
from typing import Any

from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.know.text_keys import (
    CHUNK_BYTES,
    KEY_BYTES,
    MAX_TEXT_BYTES,
    NO_TEXT,
    START,
    Text,
    Texts,
)

TEXTS = Texts(b"s" * 32)


def ask(text: str = "x" * 2000, **body: Any) -> RequestInfo:
    message = {"role": "user", "content": text}
    return parse(json.dumps({"model": "m", "messages": [message], **body}).encode(), Endpoint.CHAT)


def of(asked: RequestInfo, salt: str = "s", model: str = "m") -> Text:
    return TEXTS.of(asked, model=model, salt=salt)


def test_a_text_is_estimated_and_cut() -> None:
    text = of(ask())
    assert text.tokens == round(text.size / START)
    assert len(text.chunks.keys) == text.size // CHUNK_BYTES * KEY_BYTES > 0
    assert text.chunks.tokens_each == CHUNK_BYTES / START
    assert text.measured(text.size).tokens_each == CHUNK_BYTES
    assert text.measured(0) == text.chunks


def test_salts_and_models_share_nothing() -> None:
    keys = {of(ask(), salt, model).chunks.keys[:KEY_BYTES] for salt in "ab" for model in "mn"}
    assert len(keys) == 4
    assert of(ask(temperature=1)) == of(ask())


def test_media_has_no_text_and_long_ones_are_cut_off() -> None:
    url = {"url": "http://x/" + "y" * 2000}
    media = [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]
    assert of(ask(messages=media)) == NO_TEXT
    assert len(of(ask("x" * 2 * MAX_TEXT_BYTES)).chunks.keys) == MAX_TEXT_BYTES // CHUNK_BYTES * KEY_BYTES
