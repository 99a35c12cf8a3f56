"""HTTP client of one vLLM, over loopback: its facts, metrics, policy, and prompts to cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import aiohttp
import msgspec
from msgspec import Meta, Struct

from cachefleet_core.prompt_keys import TOKEN_HEADER
from cachefleet_core.report_frames import Policy
from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.engines.engine_errors import EngineError, EngineRefusalError, EngineUnreachableError
from cachefleet_worker.agent.engines.engine_poll import RankStats
from cachefleet_worker.agent.engines.prompt_run import PromptRun
from cachefleet_worker.agent.engines.tls import PLAIN, EngineTls
from cachefleet_worker.agent.engines.vllm.answers import read_run
from cachefleet_worker.agent.engines.vllm.endpoints import PublisherEndpoints
from cachefleet_worker.agent.engines.vllm.metrics_text import Scrape, read_scrape
from cachefleet_worker.agent.engines.vllm.plugin_api import (
    CAPABILITIES_PATH,
    CONVERSATIONS_PATH,
    HAND_BACK_PATH,
    POLICY_PATH,
    STATS_PATH,
    FleetFacts,
    read_capabilities,
    read_ended,
    read_generations,
    read_handed_back,
    read_stats,
)
from cachefleet_worker.agent.engines.vllm.prompt_requests import Json, tokenize_request, warm_request
from cachefleet_worker.agent.engines.vllm.tokenizer_probes import PROBE_CONVERSATIONS, PROBE_TEXT, digest

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_NO_PLUGIN: Final = frozenset({401, 403, 404, 405})
_KEY_ADVICE: Final = (
    "the engine answers HTTP {status} to the worker key: it was started with another one. Take --api-key and"
    " VLLM_API_KEY out of spec.engine, podTemplate and image; if the Secret of the worker keys was changed"
    " since, delete the pod"
)
_NO_HEADERS: Final[Mapping[str, str]] = {}


class AnswerError(EngineError):
    """The engine answered with another ``status`` than 200, and with ``content``, which the text leaves out."""

    def __init__(self, path: str, status: int, content: bytes = b"") -> None:
        super().__init__(f"{path}: HTTP {status}")
        self.status = status
        self.content = content


class RefusedAnswerError(AnswerError, EngineRefusalError):
    """The engine refused a request with ``status`` 400 to 499."""

    @property
    def key_advice(self) -> str:
        """As ``EngineRefusalError`` says."""
        return _KEY_ADVICE.format(status=self.status) if self.status in {401, 403} else ""


@dataclass(frozen=True, slots=True)
class Models:
    """What vLLM serves: the base model and where it was loaded from, and its adapters with where they are from."""

    model: str
    root: str
    max_model_len: int
    adapters: Mapping[str, str]


class _Model(Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _ModelList(Struct):
    data: list[_Model]


class _Version(Struct):
    version: str


class _Source(Struct):
    endpoint: str = ""
    replay_endpoint: str | None = None


class _Document(Struct):
    paths: dict[str, dict[str, msgspec.Raw]]


class _Paused(Struct):
    is_paused: bool


class _Tokens(Struct):
    tokens: list[Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]]


Answer = TypeVar("Answer")


class EngineClient:
    """Requests to one engine. Every method raises EngineError where the answer is not as expected."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        *,
        key: str = "",
        timeout_seconds: float = 3.0,
        tls: EngineTls = PLAIN,
    ) -> None:
        self.tls = tls
        """How the engine is verified."""
        self._http = http
        self._url = url
        self._key = key
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout_seconds

    async def healthy(self) -> None:
        """EngineError unless ``/health`` answers 200."""
        await self.request("GET", "/health")

    async def scrape(self) -> Scrape:
        """One reading of ``/metrics``."""
        return read_scrape((await self.request("GET", "/metrics")).decode(errors="replace"))

    async def version(self) -> str:
        """The version of vLLM."""
        return _decode(await self.request("GET", "/version"), _Version).version

    async def fleet_stats(self) -> Mapping[int, RankStats]:
        """Each rank's statistics, from the plugin."""
        return _understood(read_stats, await self._fleet_request("GET", STATS_PATH))

    async def paused(self) -> bool | None:
        """Whether its scheduler is paused; None where it has no such route, as outside of vLLM's development mode."""
        try:
            return _decode(await self.request("GET", "/is_paused"), _Paused).is_paused
        except EngineRefusalError:
            return None

    async def put_policy(self, policy: Policy) -> Mapping[int, int]:
        """Give the plugin a policy; returns the generation then in force at each rank."""
        body = msgspec.to_builtins(msgspec.structs.replace(policy, adapters=None))  # they are not the plugin's
        return _understood(read_generations, await self._fleet_request("PUT", POLICY_PATH, body))

    async def hand_back(self) -> int:
        """Have the plugin give back the answers that other workers can go on with; returns how many."""
        return _understood(read_handed_back, await self._fleet_request("POST", HAND_BACK_PATH))

    async def end_conversations(self) -> int:
        """Have the plugin end every conversation that it keeps; returns their turns."""
        return _understood(read_ended, await self._fleet_request("DELETE", CONVERSATIONS_PATH))

    async def cache_prompt(
        self, model: str, prefix: Prefix, *, again: bool, timeout_seconds: float, rank: int | None = None
    ) -> PromptRun:
        """Run a prompt for its cache; at one data-parallel rank, as each has its own cache."""
        path, body = warm_request(model, prefix, again=again)
        headers = _NO_HEADERS if rank is None else {"X-data-parallel-rank": str(rank)}
        return _understood(read_run, await self.request("POST", path, body, timeout_seconds, headers=headers))

    async def count_tokens(self, model: str, prefix: Prefix) -> int:
        """The tokens of a prompt, however long it is."""
        return len(await self._tokenize(tokenize_request(model, prefix)))

    async def models(self) -> Models:
        """The models served now."""
        models = _decode(await self.request("GET", "/v1/models"), _ModelList).data
        base = next((model for model in models if model.parent is None), None)
        if base is None:
            raise EngineError("the engine serves no model")
        adapters = {model.id: model.root or "" for model in models if model.parent is not None}
        return Models(base.id, base.root or base.id, base.max_model_len or 0, adapters)

    async def tokenizer_digest(self, model: str) -> str:
        """Digest of a probe text's token ids."""
        return digest(await self._tokenize({"model": model, "prompt": PROBE_TEXT, "add_special_tokens": True}))

    async def template_digest(self, model: str) -> str:
        """Digest of the chat template; "" where there is none, or none that renders a probe."""
        for messages in PROBE_CONVERSATIONS:
            try:
                return digest(await self._tokenize({"model": model, "messages": list(messages)}))
            except EngineUnreachableError:
                raise
            except EngineError:
                continue
        return ""

    async def _tokenize(self, body: Json) -> list[int]:
        return _decode(await self.request("POST", "/tokenize", body), _Tokens).tokens

    async def sources(self) -> Mapping[int, PublisherEndpoints] | None:
        """Where each rank publishes; None where vLLM does not say."""
        try:
            answer = _decode(await self.request("GET", "/kv_event_sources"), dict[int, _Source])
        except EngineUnreachableError:
            raise
        except EngineError:
            return None
        return {
            rank: PublisherEndpoints(source.endpoint, source.replay_endpoint or "") for rank, source in answer.items()
        }

    async def endpoints(self) -> tuple[str, ...] | None:
        """The paths that it takes a POST at; None where vLLM does not say, as with --disable-fastapi-docs."""
        try:
            paths = _decode(await self.request("GET", "/openapi.json"), _Document).paths
        except EngineUnreachableError:
            raise
        except EngineError:
            return None
        return tuple(sorted(path for path, methods in paths.items() if "post" in methods and "{" not in path))

    async def capabilities(self) -> FleetFacts | None:
        """The plugin's capability document; None without the plugin, or where it refuses the key."""
        try:
            return _understood(read_capabilities, await self._fleet_request("GET", CAPABILITIES_PATH))
        except RefusedAnswerError as error:
            if error.status in _NO_PLUGIN:
                return None
            raise

    async def _fleet_request(self, method: str, path: str, body: Json | None = None) -> bytes:
        return await self.request(method, path, body, headers={TOKEN_HEADER: self._key} if self._key else {})

    async def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        timeout_seconds: float | None = None,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> bytes:
        """The answer of one request; the time is that of all requests where none is given."""
        timeout = aiohttp.ClientTimeout(total=timeout_seconds or self._timeout)
        data = None if body is None else msgspec.json.encode(body)
        headers = {**self._headers, **headers, **({"Content-Type": "application/json"} if data else {})}
        try:
            async with self._http.request(
                method,
                self._url + path,
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                ssl=self.tls.trusted.context(),
                server_hostname=self.tls.server_name,
            ) as response:
                content = await response.content.read(MAX_BODY_BYTES + 1)
                while len(content) <= MAX_BODY_BYTES and (more := await response.content.read(MAX_BODY_BYTES)):
                    content += more
        except aiohttp.ClientConnectorError as error:
            raise EngineUnreachableError(f"{path}: {error.os_error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"{path}: {type(error).__name__}") from error
        if 400 <= response.status < 500:
            raise RefusedAnswerError(path, response.status, content)
        if response.status != 200:
            raise AnswerError(path, response.status, content)
        if len(content) > MAX_BODY_BYTES:
            raise EngineError(f"{path}: more than {MAX_BODY_BYTES} bytes")
        return content


def _decode(content: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(content, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"not the expected {kind.__name__.strip('_')} answer") from error


def _understood(read: Callable[[bytes], Answer], content: bytes) -> Answer:
    try:
        return read(content)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise EngineError("not the answer that was expected") from error
