"""What must be equal of two answers, and what may differ."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

from e2e.engine.side import Exchange

FREE_TEXT: Final = frozenset(
    {
        *("content", "text", "system_fingerprint", "id", "request_id", "endpoint", "replay_endpoint"),
        *("delta", "item_id"),
    }
)
FREE_NUMBER: Final = frozenset({"created", "created_at", "sequence_number"})


def comparable(value: Any, name: str = "", *, in_choice: bool = False) -> Any:
    """A body with what may differ replaced by its type; keys keep their order, nulls stay nulls."""
    match value:
        case dict():
            inside = in_choice or name == "choices"
            return [(key, comparable(item, key, in_choice=inside)) for key, item in value.items()]
        case list() if name == "token_ids" and in_choice:
            return f"{len(value)} ids"
        case list():
            return [comparable(item, name, in_choice=in_choice) for item in value]
        case str() if name in FREE_TEXT:
            return "text"
        case int() if name in FREE_NUMBER:
            return "number"
    return value


def summary(exchange: Exchange) -> Any:
    """What must be equal of an answer.

    Of a stream: choices in the order of their index, and one of several alike pieces in a row, since a busy vLLM may
    put the tokens of two steps into one.
    """
    body = exchange.body
    streamed = isinstance(body, list) and exchange.content_type.startswith("text/event-stream")
    if not (streamed and body):
        return exchange.status, exchange.content_type, comparable(body), exchange.done
    if "choices" in body[0]:
        body = sorted(body, key=lambda chunk: [choice["index"] for choice in chunk["choices"]] or [99])
    pieces = [piece for piece, _ in groupby(comparable(body))]
    return exchange.status, exchange.content_type, pieces, exchange.done
