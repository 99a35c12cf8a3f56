"""Text of token ids by the model's workers, and how many of the ids produced make whole characters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.workers.views import ServedModel

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
"""How a detokenizer shows bytes that are no whole character."""
WINDOW: Final = 32
"""Last ids that are detokenized to see whether they end within a character."""
MAX_DROPPED: Final = 8
"""A character has no more tokens than that."""

PATH: Final = "/detokenize"
SECONDS: Final = 5.0
_JSON: Final = (("content-type", "application/json"),)
WORKERS: Final = 3
"""Workers asked one after the other, at most."""

Text = Callable[[Sequence[int]], Awaitable[str | None]]
"""Turns ids to text; None where no worker can."""


async def kept_ids(produced: Sequence[int], text: Text) -> int | None:
    """Return how many of the ids produced make whole characters; None where no worker can tell.

    A worker that continues within a character would repeat everything before it.
    """
    for dropped in range(min(len(produced), MAX_DROPPED) + 1):
        end = len(produced) - dropped
        said = await text(produced[max(0, end - WINDOW) : end]) if end else ""
        if said is None or not said.endswith(REPLACEMENT):
            return None if said is None else end
    return len(produced)


class _Text(Struct, frozen=True):
    prompt: str


_text = msgspec.json.Decoder(_Text)


def detokenizer(
    fleet: Fleet, upstream: Upstream, credentials: Credentials, *, model: ServedModel
) -> Callable[[Sequence[int]], Awaitable[str | None]]:
    """Return a function from ids to their text by the model's workers; it returns None where none answers."""

    async def text(ids: Sequence[int]) -> str | None:
        body = msgspec.json.encode({"model": model.upstream, "tokens": list(ids)})
        for worker in fleet.renderers(model.name, WORKERS):
            headers = [*_JSON, ("authorization", f"Bearer {credentials.of(worker.url)}")]
            opened = await upstream.ask(worker.url, PATH, body, headers=headers, seconds=SECONDS)
            if opened.answer is not None and opened.answer.status == 200:
                try:
                    return _text.decode(opened.answer.body).prompt
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
        return None

    return text
