"""Prompts as four chat templates make them, an engine that keeps all blocks, and what is told of each request's causes.

The templates differ in what causes depend on: where the system text and tools are, and what becomes of reasoning and of
the date. Token ids are a tokenizer's of its style, trained here; block keys are the real ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import jinja2
from cachefleet_native import Keyer, shared_blocks

from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.prompt_causes.prompt_cause import Examined, PromptCause, PromptLoss, Relation
from cachefleet_controlplane.prompt_causes.prompt_shapes import PromptShapes
from tests.worker.plugin.tokens.styles import trained

_PARTS: Final = (
    "{%- macro text(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{{ part.text if part.type == 'text' else '<image>' ~ part.image_url.url ~ '</image>' }}{% endfor %}{% endif %}"
    "{% endmacro -%}"
)
QWEN: Final = (
    "<|im_start|>system\n{{ style }}{{ system }}{% if tools %}"
    "\n# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "{% endif %}<|im_end|>\n{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > last %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ text(m.content) }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
LLAMA: Final = (
    "<|begin|><|header|>system<|end|>\nCutting Knowledge Date: December 2023\nToday Date: {{ today }}\n\n"
    "{{ style }}{{ system }}<|eot|>{% if tools %}<|header|>user<|end|>\nGiven the following functions:\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}{% for m in messages %}"
    "<|header|>{{ m.role }}<|end|>\n{% if m.reasoning_content %}{{ m.reasoning_content }}\n{% endif %}"
    "{{ text(m.content) }}<|eot|>{% endfor %}<|header|>assistant<|end|>\n"
)
MISTRAL: Final = (
    "<s>[SYSTEM]{{ style }}{{ system }}[/SYSTEM]{% for m in messages %}{% if loop.index0 == last and tools %}[TOOLS]"
    "{{ tools | tojson }}[/TOOLS]{% endif %}{% if m.role == 'assistant' %} {{ m.reasoning_content or '' }}"
    "{{ text(m.content) }}</s>{% else %}[INST]{{ text(m.content) }}[/INST]{% endif %}{% endfor %}"
)
DEEPSEEK: Final = (
    "<|begin|>{% for tool in tools or () %}Tool: {{ tool | tojson }}\n{% endfor %}{{ style }}{{ system }}\n"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content and loop.index0 > last %}{{ m.reasoning_content }}\n{% endif %}"
    "{{ text(m.content) }}{% endfor %}<|assistant|>{% if enable_thinking is false %}</think>{% endif %}"
)
TEMPLATES: Final = {"qwen": QWEN, "llama3": LLAMA, "mistral": MISTRAL, "deepseek": DEEPSEEK}
_SECRETS: Final = (0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179, 0xCBBB9D5DC1059ED8, 0x629A292A367CD507)
Body = dict[str, Any]


@cache
def _template(source: str) -> jinja2.Template:
    return jinja2.Environment(autoescape=False).from_string(_PARTS + source)  # noqa: S701 - prompts, no pages


@cache
def _tokenizer(name: str) -> Any:
    return trained("qwen" if name in {"qwen", "mistral"} else "llama3")


def render(template: str, body: Body, *, today: str = "27 Nov 2026") -> str:
    """The text of a chat's prompt."""
    messages = body["messages"]
    leading = [m for m in messages[:1] if m["role"] == "system"]
    rest = messages[len(leading) :]
    users = [at for at, m in enumerate(rest) if m["role"] == "user"]
    system = leading[0]["content"] if leading else "You are a helpful assistant."
    options = body.get("chat_template_kwargs", {})
    return _template(TEMPLATES[template]).render(
        system=system, messages=rest, tools=body.get("tools"), last=users[-1] if users else -1, today=today, **options
    )


@dataclass(slots=True)
class Told:
    """What became of one request."""

    losses: tuple[PromptLoss, ...]
    relation: Relation | None
    tokens: int
    served: int
    first_seen: int
    nearest: int
    """Blocks that it shares with any earlier prompt."""
    keys: bytes
    """Of its blocks."""

    @property
    def causes(self) -> set[PromptCause]:
        """Those that can be mended."""
        fine = {PromptCause.NEW, PromptCause.REPEATED, PromptCause.NOT_EXAMINED}
        return {one.cause for one in self.losses} - fine


@dataclass(slots=True)
class Engine:
    """An engine that keeps all blocks of all prompts, and what is told of the causes."""

    template: str
    block_size: int = 16
    shapes: PromptShapes = field(default_factory=PromptShapes)
    held: set[bytes] = field(default_factory=set)
    chains: list[bytes] = field(default_factory=list)

    def ask(self, body: Body, *, tenant: str = "acme", salt: str = "", today: str = "27 Nov 2026") -> Told:
        """Serve a chat."""
        keys, tokens = self.read(body, tenant=tenant, salt=salt, today=today)
        return self._served(body, keys, tokens, line=tenant, salt=salt)

    def read(
        self, body: Body, *, tenant: str = "acme", salt: str = "", today: str = "27 Nov 2026"
    ) -> tuple[bytes, int]:
        """The block keys and tokens of a chat's prompt."""
        ids = _tokenizer(self.template).encode(render(self.template, body, today=today), add_special_tokens=False).ids
        return self._keys(ids, tenant, salt), len(ids)

    def _keys(self, ids: Sequence[int], tenant: str, salt: str) -> bytes:
        own = random.Random(f"{tenant} {salt}").getrandbits(64)
        return Keyer([secret ^ own for secret in _SECRETS], self.block_size).packed(ids)

    def _served(self, body: Body, keys: bytes, tokens: int, *, line: str, salt: str) -> Told:
        servable = (tokens - 1) // self.block_size
        blocks = [keys[at : at + 8] for at in range(0, len(keys), 8)]
        served = next((n for n, key in enumerate(blocks[:servable]) if key not in self.held), servable)
        first_seen = (servable - served) * self.block_size
        prompt = Examined(
            prompt_tokens=tokens,
            block_size=self.block_size,
            first_seen=first_seen,
            servable=servable * self.block_size,
        )
        ask = parse(json.dumps(body).encode(), Endpoint.CHAT).ask
        losses, relation = self.shapes.ended(line, self.shapes.read.shape(ask, salt), keys, prompt)
        nearest = max((shared_blocks(keys, chain) for chain in self.chains), default=0)
        self.held.update(blocks)
        self.chains.append(keys)
        return Told(losses, relation, tokens, served * self.block_size, first_seen, nearest, keys)


def check(told: Told, block_size: int = 16) -> None:
    """What holds of every request: sums, and the position to the block."""
    assert sum(one.tokens for one in told.losses) == told.first_seen
    assert all(one.tokens > 0 for one in told.losses)
    if told.relation is not None:
        assert told.relation.blocks <= told.nearest
    if told.causes:
        assert told.relation is not None
        assert told.served == told.nearest * block_size
        # Under other parameters another prompt may begin with more of the same blocks, and have nothing else in common.
        assert told.relation.blocks == told.nearest or told.relation.parameters
