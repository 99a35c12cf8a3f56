"""What applications do with the official clients; for the gateway before fake engines and before real vLLM.

Nothing is asserted of what a model says, only of what an API promises.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.controlplane.gateway.apis.client_chats import (
    chat_log_probabilities,
    chat_several_choices,
    chat_some_tool,
    chat_stream,
    chat_stream_with_usage,
    chat_structured,
    chat_tool_by_name,
    chat_tool_streamed,
    chat_whole,
    completions,
    completions_stream,
)
from tests.controlplane.gateway.apis.client_messages import (
    anthropic_errors,
    messages_count_tokens,
    messages_stream,
    messages_tool,
    messages_whole,
)
from tests.controlplane.gateway.apis.client_responses import (
    embeddings,
    models,
    openai_errors,
    responses_are_not_stored,
    responses_over_a_websocket,
    responses_stream,
    responses_structured,
    responses_tool,
    responses_warmed_up,
    responses_whole,
)
from tests.controlplane.gateway.apis.client_setup import Scenario

GENERATING: Final[tuple[Scenario, ...]] = (
    *(chat_whole, chat_stream, chat_stream_with_usage, chat_several_choices, chat_log_probabilities),
    *(chat_tool_by_name, chat_some_tool, chat_tool_streamed, chat_structured, completions, completions_stream),
    *(responses_whole, responses_stream, responses_tool, responses_structured, responses_are_not_stored),
    *(responses_over_a_websocket, responses_warmed_up, models, openai_errors),
    *(messages_whole, messages_stream, messages_tool, messages_count_tokens, anthropic_errors),
)
POOLING: Final[tuple[Scenario, ...]] = (embeddings,)


def names(scenarios: Iterable[Scenario]) -> list[str]:
    return [getattr(scenario, "__name__", "") for scenario in scenarios]
