"""Text of a few token ids, from a worker's own tokenizer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.upstream.client import Upstream
from cachefleet_controlplane.gateway.upstream.credentials import Credentials
from cachefleet_controlplane.workers.views import ServedModel

PATH: Final = "/detokenize"
SECONDS: Final = 5.0
_JSON: Final = (("content-type", "application/json"),)
WORKERS: Final = 3
"""Asked one after the other."""


class _Text(Struct, frozen=True):
    prompt: str


_text = msgspec.json.Decoder(_Text)


def detokenizer(
    fleet: Fleet, upstream: Upstream, credentials: Credentials, *, model: ServedModel
) -> Callable[[Sequence[int]], Awaitable[str | None]]:
    """Gives the text of ids; None where no worker of the model tells."""

    async def text(ids: Sequence[int]) -> str | None:
        body = msgspec.json.encode({"model": model.upstream, "tokens": list(ids)})
        for worker in fleet.renderers(model.name)[:WORKERS]:
            headers = [*_JSON, ("authorization", f"Bearer {credentials.of(worker.url)}")]
            opened = await upstream.ask(worker.url, PATH, body, headers=headers, seconds=SECONDS)
            if opened.answer is not None and opened.answer.status == 200:
                try:
                    return _text.decode(opened.answer.body).prompt
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
        return None

    return text
