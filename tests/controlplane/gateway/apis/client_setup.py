"""The official clients of one gateway, and what the scenarios of ``client_scenarios`` ask with them."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import anthropic
import openai
from pydantic import BaseModel

MESSAGES: Final[list[Any]] = [
    {"role": "system", "content": "You are terse. Ünïcode: 漢字 🙂"},
    {"role": "user", "content": "hello there my friend, say something long enough"},
]
USER: Final[list[Any]] = [MESSAGES[1]]
PROMPT: Final = "hello there my friend, ünïcode 漢字 🙂 and more"
TOOL_NAME: Final = "look_up"
PLAIN: Final = ssl.create_default_context()
"""Made once: a client reads all authorities that a machine knows, and the gateway speaks plain HTTP."""
MANY: Final = 200
"""Tokens enough for the arguments of a call."""


class Reading(BaseModel):
    """Small, so that any model under a grammar soon comes to its end."""

    unit: Literal["C", "F"]
    exact: bool


SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["C", "F"]}, "exact": {"type": "boolean"}},
    "required": ["unit", "exact"],
    "additionalProperties": False,
}
FUNCTION: Final[dict[str, Any]] = {
    "name": TOOL_NAME,
    "description": "Looks it up.",
    "parameters": SCHEMA,
    "strict": True,
}
"""Without ``strict`` vLLM's grammar lets a call have any arguments at all."""
CHAT_TOOLS: Final[list[Any]] = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS: Final[list[Any]] = [
    {"type": "function", "name": TOOL_NAME, "description": "Looks it up.", "parameters": SCHEMA, "strict": True}
]
MESSAGE_TOOLS: Final[list[Any]] = [
    {"name": TOOL_NAME, "description": "Looks it up.", "input_schema": SCHEMA, "strict": True}
]
NAMED: Final[Any] = {"type": "function", "function": {"name": TOOL_NAME}}


@dataclass(frozen=True, slots=True)
class Clients:
    """Both clients of one gateway, and the model that it serves."""

    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    model: str


Scenario = Callable[[Clients], Awaitable[None]]


def clients(url: str, *, model: str, key: str = "sk-someone") -> Clients:
    """Unchanged clients, told nothing but where the gateway is; they do not hide a failure by a retry."""
    return Clients(
        openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key=key,
            max_retries=0,
            timeout=120,
            http_client=openai.DefaultAsyncHttpxClient(verify=PLAIN),
        ),
        anthropic.AsyncAnthropic(
            base_url=url,
            api_key=key,
            max_retries=0,
            timeout=120,
            http_client=anthropic.DefaultAsyncHttpxClient(verify=PLAIN),
        ),
        model,
    )
