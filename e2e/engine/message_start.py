"""What the plugin adds to an answer unasked: the cached part of a prompt where a messages stream begins."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_CACHED: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
_EVENT: Final = re.compile(rb"(event: message_start\ndata: )(.*)")


def as_stock(event: dict[str, Any]) -> dict[str, Any]:
    """A ``message_start`` as vLLM sends it: all tokens of the prompt as its input, none of them apart."""
    usage = dict(event["message"]["usage"])
    usage["input_tokens"] += sum(usage.pop(name, None) or 0 for name in _CACHED)
    return {**event, "message": {**event["message"], "usage": usage}}


def stream_as_stock(stream: bytes) -> bytes:
    """The same in a stream's bytes; whatever else is in them stays."""
    return _EVENT.sub(lambda found: found[1] + json.dumps(as_stock(json.loads(found[2]))).encode(), stream)
