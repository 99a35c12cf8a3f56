"""A stock renderer of vLLM and one that encodes through a cache, side by side, and what must be the same of them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings
from cachefleet_worker.plugin.tokens.cached_encoder import CachedEncoder
from cachefleet_worker.plugin.tokens.hook_installation import install
from tests.worker.plugin.tokens.styles import trained

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
    """A stock renderer, and one that encodes through a cache."""

    def __init__(self, folder: Path) -> None:
        from vllm.config import ModelConfig, VllmConfig  # noqa: PLC0415 - takes ten seconds
        from vllm.renderers.registry import renderer_from_config  # noqa: PLC0415

        self.capabilities = Capabilities()
        self.faults = Faults(self.capabilities)
        config = VllmConfig(model_config=ModelConfig(model=str(folder), dtype="float32", max_model_len=MAX_LENGTH))
        self.stock: Any = renderer_from_config(config)
        cache = install(self.capabilities, self.faults, PluginSettings(tokens_sample_ratio=1.0))
        assert cache is not None
        self.cache: CachedEncoder = cache
        self.ours: Any = renderer_from_config(config)
        assert cache.prepare(self.ours.tokenizer) is None
        refused = cache._seat(self.stock.tokenizer)
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


def compare_texts(pair: Pair) -> None:
    """Chats and completions have the same ids, most of them from the cache."""
    before = pair.cache.stats().get("memoised", 0)
    for messages in chats(60):
        text = "".join(message["content"] for message in messages)
        ours, stock = pair.outcome(lambda it, messages=messages: it.render_chat([messages], chat_params())[1])
        assert ours == stock
        ours, stock = pair.outcome(lambda it, text=text: it.render_cmpl([{"prompt": text}, {"prompt": text * 2}]))
        assert ours == stock
    pair.cache.settle()
    stats = pair.cache.stats()
    assert stats["memoised"] - before > 100
    assert stats["samples"] > 0
    assert stats.get("mismatches", 0) == 0
    assert pair.capabilities.mode("tokens") == "cache"


def compare_tenants(pair: Pair) -> None:
    """Chats of many tenants at once have the same ids, each under its own salt."""
    messages = list(chats(12))

    async def render(renderer: Any) -> list[Any]:
        jobs = (
            renderer.render_chat_async([chat], chat_params(), prompt_extras={"cache_salt": f"tenant {number}"})
            for number, chat in enumerate(messages)
        )
        return [engine_input for _, engine_inputs in await asyncio.gather(*jobs) for engine_input in engine_inputs]

    ours, stock = pair.outcome(lambda it: asyncio.run(render(it)))
    assert ours == stock
    assert {key.salt for key in pair.cache._cache._entries} >= {f"tenant {number}" for number in range(12)}


def main(folder: str) -> None:
    """In a process of its own, with another vLLM first on the path."""
    import vllm  # noqa: PLC0415

    pair = Pair(Path(folder))
    compare_texts(pair)
    compare_tenants(pair)
    print("vllm", vllm.__version__, "memoised", pair.cache.stats()["memoised"])  # noqa: T201 - read by the test
