"""The hook in real vLLM: patched and stock renderers of one process give the same, whatever is asked."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from cachefleet_worker.plugin.tokens.renderer import ENCODES, RENDERS, RENDERS_ASYNC
from tests.worker.plugin.tokens.renderers import (
    MAX_LENGTH,
    Pair,
    chat_params,
    chats,
    compare_tenants,
    compare_texts,
    write_model,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(420),
    pytest.mark.filterwarnings("ignore"),  # vLLM and torch warn of themselves
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setenv("HF_HUB_OFFLINE", "1")
        from vllm.renderers.base import BaseRenderer  # noqa: PLC0415

        for name in (ENCODES, "__init__", *RENDERS, *RENDERS_ASYNC):
            patched.setattr(BaseRenderer, name, vars(BaseRenderer)[name])  # put back at the end
        yield Pair(write_model(tmp_path_factory.mktemp("model")))


def token_params(**changes: Any) -> Any:
    from vllm.renderers.params import TokenizeParams  # noqa: PLC0415

    return TokenizeParams(**({"max_total_tokens": MAX_LENGTH} | changes))


def test_chats_and_completions_have_the_same_ids(pair: Pair) -> None:
    compare_texts(pair)


def test_salts_reach_the_executor_and_the_answers_are_the_same(pair: Pair) -> None:
    compare_tenants(pair)


async def test_what_one_tenant_sent_is_not_found_by_another(pair: Pair) -> None:
    chat = next(chats(1))
    hits = []
    for salt in ("one", "other", "one"):
        before = pair.cache.stats()["part_hits"]
        await pair.ours.render_chat_async([chat], chat_params(), prompt_extras={"cache_salt": salt})
        hits.append(pair.cache.stats()["part_hits"] - before)
    assert hits[:2] == [0, 0]
    assert hits[2] > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"add_special_tokens": False},
        {"truncate_prompt_tokens": 7},
        {"truncate_prompt_tokens": 7, "truncation_side": "left"},
        {"truncate_prompt_tokens": 7, "truncation_side": "right"},
        {"truncate_prompt_tokens": -1},
        {"pad_prompt_tokens": 90},
        {"max_total_tokens": 12},
        {"max_total_tokens": None},
        {"do_lower_case": True},
        {"return_token_offsets": True},
        {"needs_detokenization": True},
    ],
)
def test_every_way_to_encode_gives_the_same(pair: Pair, changes: dict[str, Any]) -> None:
    text = "A Text that is long enough to be looked up, <|im_start|> and has tokens. " * 3
    ours, stock = pair.outcome(lambda it: it.render_cmpl([{"prompt": text}], token_params(**changes)))
    assert ours == stock


@pytest.mark.parametrize(
    "text", ["\ud800" * 80, "", "x" * 60_000, "a b " * 2_000], ids=["broken", "none", "long", "many"]
)
def test_text_that_cannot_be_used_fails_as_it_does_in_stock(pair: Pair, text: str) -> None:
    ours, stock = pair.outcome(lambda it: it.render_cmpl([{"prompt": text}]))
    assert ours == stock
    assert pair.faults.on("tokens")


@pytest.mark.requirement("C7")
def test_boundaries_of_a_chat_are_kept_by_its_next_turn(pair: Pair) -> None:
    from cachefleet_worker.plugin.tokens.boundaries import deepest  # noqa: PLC0415 - only where vLLM is

    for messages in chats(10):
        now, following = (
            pair.ours.render_chat([turns], chat_params())[1][0]["prompt_token_ids"]
            for turns in (messages, [*messages, {"role": "assistant", "content": "So it is."}])
        )
        found = pair.cache.boundaries(pair.ours.tokenizer, now)
        assert len(found) >= len(messages) + 1
        assert deepest(found, now, following) == found[-1]


def online(renderer: Any) -> Any:
    """The part of vLLM's server around a renderer."""
    from vllm.renderers.online_renderer import OnlineRenderer  # noqa: PLC0415

    return OnlineRenderer(
        renderer.model_config, renderer, request_logger=None, chat_template=None, chat_template_content_format="auto"
    )


def test_a_request_of_the_server_brings_its_salt(pair: Pair) -> None:
    """With the request objects of vLLM's server, through the part of the server that renders."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415

    chat = next(chats(1))
    request = ChatCompletionRequest(model="m", messages=chat, cache_salt="of the request")

    def render(renderer: Any) -> Any:
        return asyncio.run(online(renderer).preprocess_chat(request, chat, None, "auto", None))[1]

    ours, stock = pair.outcome(render)
    assert ours == stock
    assert "of the request" in {key.salt for key in pair.cache._cache._entries}


def test_a_servers_warm_up_has_the_tokenizer_prepared(pair: Pair) -> None:
    from vllm.renderers.registry import renderer_from_config  # noqa: PLC0415

    renderer = renderer_from_config(pair.ours.config)
    pair.cache.settle()  # the queue of what is left to do is short
    online(renderer).warmup()
    pair.cache.settle()
    assert pair.cache._seat(renderer.tokenizer).encoder is not None
