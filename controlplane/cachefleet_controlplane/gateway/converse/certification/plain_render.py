"""A prompt's token ids as a worker's vLLM renders them, without a cache, for canaries and examinations."""

from __future__ import annotations

from array import array
from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.know.rendering_result import Keying, read
from cachefleet_controlplane.gateway.request.rendered_prompt import Rung
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_controlplane.workers.render_profiles import RenderFacts
from cachefleet_core.continuation import ids_array
from cachefleet_core.prompt_keys import KEYS_PATH, TOKEN_HEADER

_KEYING: Final = Keying(lambda: None, keep_ids=True)


class _Answer(Struct, frozen=True):
    prompt_token_ids: list[int]


_answer = msgspec.json.Decoder(_Answer)


class PlainRenderer:
    """Asks one worker, ``seconds`` at most for each call; None where it gives no such answer."""

    def __init__(self, upstream: Upstream, credentials: Credentials, *, seconds: float) -> None:
        self._upstream = upstream
        self._credentials = credentials
        self._seconds = seconds

    async def rendered(self, worker: WorkerEndpoint, endpoint: Endpoint, body: bytes) -> array[int] | None:
        """Return the ids by vLLM's render route."""
        opened = await self._post(worker, f"{endpoint}/render", body)
        return read(opened, Rung.RENDER, endpoint, keying=_KEYING).prompt.ids

    async def keyed(
        self, worker: WorkerEndpoint, body: bytes, facts: RenderFacts
    ) -> tuple[array[int], tuple[int, ...]] | None:
        """Return the ids by the worker's plugin, with the boundaries that it proposes."""
        path = f"{KEYS_PATH}?{facts.keys_query}&ids=1"
        found = read(await self._post(worker, path, body), Rung.KEYS, Endpoint.CHAT, keying=_KEYING).prompt
        return None if found.ids is None else (found.ids, found.boundaries)

    async def served(self, worker: WorkerEndpoint, body: bytes) -> array[int] | None:
        """Return the ids that the engine saw, which answers the chat."""
        opened = await self._post(worker, Endpoint.CHAT, body)
        if opened.answer is None or opened.answer.status != 200:
            return None
        try:
            return ids_array(_answer.decode(opened.answer.body).prompt_token_ids)
        except (*READ_ERRORS, OverflowError):
            return None

    async def _post(self, worker: WorkerEndpoint, path: str, body: bytes) -> AttemptResult:
        key = self._credentials.of(worker.url)
        headers = [
            ("content-type", "application/json"),
            ("authorization", f"Bearer {key}"),
            (TOKEN_HEADER, key),
        ]
        return await self._upstream.ask(worker.url, path, body, headers=headers, seconds=self._seconds)
