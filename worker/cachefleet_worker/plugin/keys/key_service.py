"""``POST /v1/fleet/keys``: block keys and safe boundaries of a chat or completion body, for routing it.

The query needs ``contract`` (a fingerprint) and may have ``lora`` (an adapter with its revision, as in
cachefleet_core/block_identity/adapters.py), ``block_size``, ``lookahead`` (the contract's; 0 where left out), ``api``
(``responses``, ``messages``) and ``ids=1``; others are ignored.
The salt is the body's. The answer is the document of cachefleet_core/prompt_keys.py, with one entry for each prompt of
the body.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_core.block_keys import MAX_LOOKAHEAD, Namespace, pack_tokens
from cachefleet_core.engine.held_requests import Hold
from cachefleet_core.native import available_code
from cachefleet_core.prompt_keys import MAX_BLOCK_SIZE, MAX_PROMPTS, MEDIA_TYPE, PromptKeys, encode
from cachefleet_worker.plugin.asgi import HttpError, Response
from cachefleet_worker.plugin.capabilities import OFF
from cachefleet_worker.plugin.compat import unmet
from cachefleet_worker.plugin.keys.key_cache import KeyCache, TokenIdError, packed
from cachefleet_worker.plugin.keys.render import (
    BodyKind,
    NoRenderingError,
    Prompt,
    PromptSource,
    RefusedError,
    Rendered,
)
from cachefleet_worker.plugin.plugin_process import Process

log = logging.getLogger("vllm.cachefleet")

FEATURE: Final = "keys"
MODE: Final = "render"
MEDIA: Final = "media"
"""Told beside FEATURE: keys take images and the like into account."""
FAULTS_IN_A_ROW: Final = 3
"""After so many without a success the feature is off; a single one may be the fault of its body."""
MAX_LORA: Final = 1024
_CONTRACT: Final = re.compile(r"sha256:[0-9a-f]{64}")

Boundaries = Callable[[Any, Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class KeysQuery:
    """The query of one request."""

    contract: str
    lora: str
    block_size: int
    ids: bool
    api: BodyKind = BodyKind.OPENAI
    lookahead: int = 0

    @classmethod
    def of(cls, query: dict[str, str], *, block_size: int) -> KeysQuery:
        """Parse a query. HttpError 400 names a bad parameter. ``block_size`` is the engine's, 0 where unknown."""
        contract = query.get("contract", "")
        if not _CONTRACT.fullmatch(contract):
            raise HttpError(400, "bad_contract", "contract: must be the fingerprint of an index contract, sha256:...")
        lora = query.get("lora", "")
        if len(lora) > MAX_LORA:
            raise HttpError(400, "bad_lora", f"lora: must have at most {MAX_LORA} characters")
        size = _block_size(query.get("block_size", ""), block_size)
        ahead = _lookahead(query.get("lookahead", "0"))
        return cls(contract, lora, size, _flag(query, "ids"), _api(query), ahead)


def _flag(query: dict[str, str], name: str) -> bool:
    if query.get(name, "0") not in {"0", "1"}:
        raise HttpError(400, f"bad_{name}", f"{name}: must be 0 or 1")
    return query.get(name) == "1"


def _api(query: dict[str, str]) -> BodyKind:
    try:
        return BodyKind(query.get("api", ""))
    except ValueError:
        named = ", ".join(filter(None, BodyKind))
        raise HttpError(400, "bad_api", f"api: must be {named} or left out") from None


def _block_size(text: str, known: int) -> int:
    if not text and known:
        return known
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and 1 <= int(text) <= MAX_BLOCK_SIZE):
        raise HttpError(400, "bad_block_size", f"block_size: must be from 1 to {MAX_BLOCK_SIZE}, got {text[:16]!r}")
    return int(text)


def _lookahead(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and int(text) <= MAX_LOOKAHEAD):
        raise HttpError(400, "bad_lookahead", f"lookahead: must be from 0 to {MAX_LOOKAHEAD}, got {text[:16]!r}")
    return int(text)


class KeyService:
    """Answers requests for keys in one API server or render server."""

    def __init__(self, process: Process, state: Any, *, block_size: int | None = None) -> None:
        """``block_size`` is the engine's, None where unknown: then each request must name one."""
        self._faults = process.faults
        self._capabilities = process.capabilities
        self._offloop = process.settings.keys_offloop_tokens
        self._block_size = block_size or 0
        self._boundaries = _boundaries(process)
        self._source: PromptSource | None = None
        self._in_a_row = 0
        self.cache: KeyCache | None = None
        self._start(process, state)

    @property
    def on(self) -> bool:
        """Whether it gives keys now."""
        return self._source is not None and self.cache is not None and self._faults.on(FEATURE)

    @property
    def source(self) -> PromptSource | None:
        """What renders prompts; None while the feature is off."""
        return self._source if self.on else None

    def stats(self) -> dict[str, int]:
        """Counters of the key cache; empty while the feature is off."""
        return self.cache.stats() if self.cache else {}

    async def answer(self, query: dict[str, str], body: bytes) -> Response:
        """The document, or vLLM's own refusal of the body. HttpError, RefusedError."""
        if self._source is None or self.cache is None or not self._faults.on(FEATURE):
            raise self._why_not()
        asked = KeysQuery.of(query, block_size=self._block_size)
        try:
            content = await self._content(asked, body, self._source, self.cache)
        except (HttpError, RefusedError):
            raise
        except TokenIdError as error:  # vLLM passes ids in a body through unchecked
            raise HttpError(400, "bad_token_ids", str(error)) from None
        except Exception:
            self._in_a_row += 1
            if self._in_a_row >= FAULTS_IN_A_ROW:
                self._faults.off(FEATURE, f"{FAULTS_IN_A_ROW} faults in a row")
            raise
        self._in_a_row = 0
        return Response(content, media_type=MEDIA_TYPE)

    async def of_prompt(self, hold: Hold, prompt: Mapping[str, Any] | None) -> bytes:
        """The document of a held request's prompt, as vLLM's renderer made it; b"" where it has no keys."""
        if prompt is None or self._source is None or self.cache is None or not self._faults.on(FEATURE):
            return b""
        content = b""
        with self._faults.guard(FEATURE):
            try:
                asked = KeysQuery(hold.contract, "", hold.block_size, hold.ids, lookahead=hold.lookahead)
                only = self._source.prompt(prompt, hold.model)
                rendered = Rendered((only,), prompt.get("cache_salt") or "", self._source.adapter(hold.model))
                content = await self._document(asked, rendered, self._source.tokenizer(), self.cache)
            except TokenIdError:
                return b""
        return content

    async def _content(self, asked: KeysQuery, body: bytes, source: PromptSource, cache: KeyCache) -> bytes:
        rendered = await source.render(body, asked.api)
        if len(rendered.prompts) > MAX_PROMPTS:
            raise HttpError(400, "too_many_prompts", f"{len(rendered.prompts)} prompts, the limit is {MAX_PROMPTS}")
        return await self._document(asked, rendered, source.tokenizer(), cache)

    async def _document(self, asked: KeysQuery, rendered: Rendered, tokenizer: Any, cache: KeyCache) -> bytes:
        """The document of what was rendered; a long one is made in a thread."""
        namespace = Namespace(asked.contract, rendered.salt, asked.lora or rendered.adapter)

        def document() -> bytes:
            prompts = [
                self._keyed(prompt, asked, namespace, cache=cache, tokenizer=tokenizer) for prompt in rendered.prompts
            ]
            return encode(prompts, ids=asked.ids)

        if sum(len(prompt.ids) for prompt in rendered.prompts) < self._offloop:
            return document()
        return await asyncio.to_thread(document)

    def _keyed(
        self, prompt: Prompt, asked: KeysQuery, namespace: Namespace, *, cache: KeyCache, tokenizer: Any
    ) -> PromptKeys:
        ids = packed(prompt.ids)
        plain = ids if prompt.plain >= len(ids) else ids[: prompt.plain]
        return PromptKeys(
            tokens=len(ids),
            block_size=asked.block_size,
            boundaries=tuple(self._boundaries(tokenizer, ids)),
            keys=cache.keys(namespace, asked.block_size, plain, prompt.media, lookahead=asked.lookahead),
            ids=pack_tokens(ids) if asked.ids else b"",
        )

    def _start(self, process: Process, state: Any) -> None:
        if off := process.settings.switched_off(FEATURE):
            self._faults.off(FEATURE, off)
            return
        with self._faults.guard(FEATURE):
            try:
                index_key = _index_key(process)
                _check_vllm()
                self._source = PromptSource(state)
            except (OSError, ValueError, NoRenderingError) as error:
                self._capabilities.add(FEATURE, OFF, str(error))
                return
            code = available_code()
            self.cache = KeyCache(index_key, max_bytes=process.settings.keys_cache_bytes, code=code)
            self._capabilities.add(FEATURE, MODE)
            self._capabilities.add(MEDIA, "on")
            log.info("cachefleet: block keys in %s code: %s", code.name, code.reason)

    def _why_not(self) -> HttpError:
        reason = next((each.reason for each in self._capabilities.document() if each.feature == FEATURE), "")
        return HttpError(503, "keys_off", f"block keys are off: {reason}")


def _index_key(process: Process) -> bytes:
    key = process.settings.index_key()
    if not key:
        raise NoRenderingError("CACHEFLEET_INDEX_KEY_FILE names no key")
    return key


def _check_vllm() -> None:
    if missing := unmet(FEATURE):
        raise NoRenderingError(missing)


def _boundaries(process: Process) -> Boundaries:
    """The token cache's ``boundaries``; none in a process without that cache."""
    found: Boundaries | None = getattr(process.parts.get("tokens"), "boundaries", None)
    return found or (lambda _tokenizer, _ids: ())
