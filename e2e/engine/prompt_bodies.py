"""Bodies of every API that shape their prompts in all ways, and answers to them that can be compared."""

from __future__ import annotations

import re
from typing import Any, Final

from e2e.engine.vllm import VllmOptions

TOOLED: Final = VllmOptions(plugin=True, extra=("--enable-auto-tool-choice", "--tool-call-parser=hermes"))


SYSTEM: Final = {"role": "system", "content": "You answer questions about the weather and the sea. " * 4}
PARTS: Final = {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two 字"}]}
CALL: Final = {"id": "a", "type": "function", "function": {"name": "tide", "arguments": '{"at": 3}'}}
CALLED: Final = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "low"},
]
TIDE: Final = {"name": "tide", "description": "the tide", "parameters": {"type": "object"}}
TOOLS: Final = [{"type": "function", "function": TIDE}]
COMMON: Final = {"model": "tiny", "max_tokens": 6, "temperature": 0}
CHAT, COMPLETION, RESPONSES, MESSAGES = "chat/completions", "completions", "responses", "messages"

BEGUN: Final = [SYSTEM, PARTS, {"role": "assistant", "content": "The s"}]
LOGPROBS: Final = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
STREAMED: Final = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1}
"""One token: several may come in one piece."""
TEXT: Final = "The quick brown fox jumps over the lazy dog. " * 5
BRIEF: Final = {"model": "tiny", "max_output_tokens": 6, "temperature": 0, "instructions": "Be brief."}

BODIES: Final[list[tuple[str, dict[str, Any]]]] = [
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS]}),
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS, *CALLED], "tools": TOOLS, "cache_salt": "tenant"}),
    (CHAT, COMMON | {"messages": [SYSTEM, PARTS], "n": 2, "temperature": 0.7, "seed": 3} | LOGPROBS),
    (CHAT, COMMON | STREAMED | {"messages": [SYSTEM, PARTS]}),
    (CHAT, COMMON | {"messages": BEGUN, "echo": True, "add_generation_prompt": False, "continue_final_message": True}),
    (COMPLETION, COMMON | {"prompt": TEXT, "echo": True, "logprobs": 1}),
    (COMPLETION, COMMON | {"prompt": list(range(300, 400)), "cache_salt": "tenant"}),
    (RESPONSES, BRIEF | {"input": "What of the sea?"}),
    (MESSAGES, COMMON | {"messages": [{"role": "user", "content": "What of the sea?"}], "system": "Be brief."}),
]
_VARYING: Final = re.compile(
    r'"(id|created|created_at|system_fingerprint|request_id|item_id|[a-z_]*(?:cache|comput)[a-z_]*)": ?("[^"]*"|[\d.]+)'
    r"|(resp|msg|chatcmpl|cmpl)[-_][\w-]+"
)
"""Names, times, and what came from the engine's cache."""


def unvaried(content: bytes) -> str:
    """An answer without what differs from one request to the next."""
    return _VARYING.sub("", content.decode())
