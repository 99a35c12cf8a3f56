"""The hook in real vLLM: patched and stock renderers of one process give the same, whatever is asked."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings
from cachefleet_worker.plugin.tokens import install
from cachefleet_worker.plugin.tokens.renderer import ENCODES, ENCODES_ELSEWHERE, RENDERS, RENDERS_ASYNC
from cachefleet_worker.plugin.tokens.token_memo import TokenMemo
from e2e.engine.versions import OLDEST, OTHERS, root
from tests.worker.plugin.tokens.styles import trained

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(420),
    pytest.mark.filterwarnings("ignore"),  # vLLM and torch warn of themselves
]

MAX_LENGTH = 600
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_model(folder: Path) -> Path:
    """What a renderer reads of a model: its configuration and its tokenizer, of the Qwen kind."""
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 1600,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
    }
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "tokenizer.json").write_text(trained("qwen").to_str())
    return folder


class Pair:
    """A stock renderer, and one that encodes through a memo."""

    def __init__(self, folder: Path) -> None:
        from vllm.config import ModelConfig, VllmConfig  # noqa: PLC0415 - takes ten seconds
        from vllm.renderers.registry import renderer_from_config  # noqa: PLC0415

        self.capabilities = Capabilities()
        self.faults = Faults(self.capabilities)
        config = VllmConfig(model_config=ModelConfig(model=str(folder), dtype="float32", max_model_len=MAX_LENGTH))
        self.stock: Any = renderer_from_config(config)
        memo = install(self.capabilities, self.faults, PluginSettings(tokens_sample_ratio=1.0))
        assert memo is not None
        self.memo: TokenMemo = memo
        self.ours: Any = renderer_from_config(config)
        assert memo.prepare(self.ours.tokenizer) is None
        refused = memo._seat(self.stock.tokenizer)
        refused.asked = True  # the stock one is on the same class; it is never prepared, so it stays as it is

    def outcome(self, call: Any) -> tuple[Any, Any]:
        return outcome(call, self.ours), outcome(call, self.stock)


def outcome(call: Any, renderer: Any) -> Any:
    """What a call gives, or how it fails; without the time of arrival."""
    try:
        found = call(renderer)
    except Exception as error:  # noqa: BLE001 - any failure is to be the same on both sides
        return type(error), str(error)
    for prompt in found:
        prompt.pop("arrival_time", None)
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setenv("HF_HUB_OFFLINE", "1")
        from vllm.renderers.base import BaseRenderer  # noqa: PLC0415

        for name in (ENCODES, "__init__", *RENDERS, *RENDERS_ASYNC):
            patched.setattr(BaseRenderer, name, vars(BaseRenderer)[name])  # put back at the end
        yield Pair(write_model(tmp_path_factory.mktemp("model")))


def chats(count: int) -> Iterator[list[dict[str, str]]]:
    rng = random.Random(5)
    words = (
        "cache",
        "block ",
        "<|im_start|>",
        "<|im_end|>\n",
        " <think>",
        "漢字",
        "🙂",
        "\n\n",
        "don't",
        "1234",
        "  ",
        "é",
    )
    for _ in range(count):
        turns = [("system", "Be brief."), ("user", "A question about caches of many blocks?"), ("assistant", "Yes.")]
        turns += [("user", "".join(rng.choices(words, k=rng.randint(1, 60)))) for _ in range(rng.randint(1, 3))]
        yield [{"role": role, "content": content} for role, content in turns]


def chat_params() -> Any:
    from vllm.renderers.params import ChatParams  # noqa: PLC0415

    return ChatParams(chat_template_kwargs={"tokenize": False, "add_generation_prompt": True})


def token_params(**changes: Any) -> Any:
    from vllm.renderers.params import TokenizeParams  # noqa: PLC0415

    return TokenizeParams(**({"max_total_tokens": MAX_LENGTH} | changes))


def test_chats_and_completions_have_the_same_ids(pair: Pair) -> None:
    before = pair.memo.stats().get("memoised", 0)
    for messages in chats(60):
        text = "".join(message["content"] for message in messages)
        ours, stock = pair.outcome(lambda it, messages=messages: it.render_chat([messages], chat_params())[1])
        assert ours == stock
        ours, stock = pair.outcome(lambda it, text=text: it.render_cmpl([{"prompt": text}, {"prompt": text * 2}]))
        assert ours == stock
    pair.memo.settle()
    stats = pair.memo.stats()
    assert stats["memoised"] - before > 100
    assert stats["samples"] > 0
    assert stats.get("mismatches", 0) == 0
    assert pair.capabilities.mode("tokens") == "memo"


def test_salts_reach_the_executor_and_the_answers_are_the_same(pair: Pair) -> None:
    messages = list(chats(12))

    async def render(renderer: Any) -> list[Any]:
        jobs = (
            renderer.render_chat_async([chat], chat_params(), prompt_extras={"cache_salt": f"tenant {number}"})
            for number, chat in enumerate(messages)
        )
        return [engine_input for _, engine_inputs in await asyncio.gather(*jobs) for engine_input in engine_inputs]

    ours, stock = pair.outcome(lambda it: asyncio.run(render(it)))
    assert ours == stock
    assert {key.salt for key in pair.memo._memo._entries} >= {f"tenant {number}" for number in range(12)}


async def test_what_one_tenant_sent_is_not_found_by_another(pair: Pair) -> None:
    chat = next(chats(1))
    hits = []
    for salt in ("one", "other", "one"):
        before = pair.memo.stats()["part_hits"]
        await pair.ours.render_chat_async([chat], chat_params(), prompt_extras={"cache_salt": salt})
        hits.append(pair.memo.stats()["part_hits"] - before)
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


def test_boundaries_of_a_chat_are_kept_by_its_next_turn(pair: Pair) -> None:
    from cachefleet_worker.plugin.tokens import deepest  # noqa: PLC0415

    for messages in chats(10):
        now, following = (
            pair.ours.render_chat([turns], chat_params())[1][0]["prompt_token_ids"]
            for turns in (messages, [*messages, {"role": "assistant", "content": "So it is."}])
        )
        found = pair.memo.boundaries(pair.ours.tokenizer, now)
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
    assert "of the request" in {key.salt for key in pair.memo._memo._entries}


def test_a_servers_warm_up_has_the_tokenizer_prepared(pair: Pair) -> None:
    from vllm.renderers.registry import renderer_from_config  # noqa: PLC0415

    renderer = renderer_from_config(pair.ours.config)
    online(renderer).warmup()
    pair.memo.settle()
    assert pair.memo._seat(renderer.tokenizer).encoder is not None


@pytest.mark.parametrize("version", OTHERS)
def test_other_versions_have_methods_of_the_same_shape(version: str) -> None:
    """By their source, since each import takes ten seconds."""
    source = (folder_or_skip(version) / "vllm" / "renderers" / "base.py").read_text()
    (found,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == "BaseRenderer")
    assert isinstance(found, ast.ClassDef)
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for name in (ENCODES, "_wants_offsets"):
        assert [argument.arg for argument in methods[name].args.args] == ["self", "prompt", "params"]
    for name in (*RENDERS, *RENDERS_ASYNC):
        assert "prompt_extras" in [argument.arg for argument in methods[name].args.kwonlyargs]
        assert isinstance(methods[name], ast.AsyncFunctionDef) == (name in RENDERS_ASYNC)
    assert f"self.{ENCODES_ELSEWHERE} = make_async(" in source


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=[] if version == OLDEST else pytest.mark.slow) for version in OTHERS]
)
def test_other_versions_give_the_same_ids(version: str, tmp_path: Path) -> None:
    folder = folder_or_skip(version)
    code = f"import runpy, sys; runpy.run_path({__file__!r}, run_name='hooked')['main'](sys.argv[1])"
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[4]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(write_model(tmp_path))],
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"vllm {version} memoised" in done.stdout


def folder_or_skip(version: str) -> Path:
    folder = root() / version
    if not (folder / "vllm" / "__init__.py").exists():
        pytest.skip(f"vLLM {version} is not below {root()}; python -m e2e.engine.versions makes it")
    return folder


def main(folder: str) -> None:
    """In a process of its own, with another vLLM first on the path."""
    import vllm  # noqa: PLC0415

    pair = Pair(Path(folder))
    test_chats_and_completions_have_the_same_ids(pair)
    test_salts_reach_the_executor_and_the_answers_are_the_same(pair)
    print("vllm", vllm.__version__, "memoised", pair.memo.stats()["memoised"])  # noqa: T201 - read by the test
