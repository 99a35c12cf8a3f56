"""The Kubernetes API over HTTP: requests, watches, retryable and permanent errors.

``kubernetes.aio`` carries the requests: it knows service accounts, kubeconfigs and the renewal of their tokens. Objects
are plain dicts.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiohttp
import msgspec

if TYPE_CHECKING:
    from kubernetes.aio import client

log = logging.getLogger(__name__)

Object = dict[str, Any]
JsonPatch = list[Object]
Query = Mapping[str, str]

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
MAX_MESSAGE: Final = 1024
WATCH_INACTIVITY_SECONDS: Final = 25.0
"""A watch that is silent for longer is broken without having said so."""
WATCH_SHARE: Final = 0.8
"""Part of the inactivity bound after which the server is asked to end a watch, so that none is silent for that long."""
RENEW_SECONDS: Final = 2.0
"""How often credentials that the server does not take are read again, at most."""
LIST_PAGE: Final = 500
"""Objects per page of a list."""

_APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
"""With a character set, without which ``kubernetes.aio`` would encode the body by itself."""
_NOT_YAML: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
"""Characters that JSON may hold as they are and YAML may not, or reads as line breaks."""
_REFUSALS: Final = ("failed to create typed patch object", "Internal error occurred: failed calling webhook")
"""Messages of permanent errors that come with status 500: an unknown field, an unreachable admission webhook."""


class KubernetesError(Exception):
    """A failed request. ``status`` is the HTTP status, 0 where no answer came."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def gone(self) -> bool:
        """Whether the resource version asked for is too old (410): everything must be listed again."""
        return self.status == 410


class RetryableError(KubernetesError):
    """Worth another attempt: no answer, an overloaded or failing server, a conflict."""


class RefusedError(KubernetesError):
    """Permanent: the request is invalid or not allowed and will be refused again."""


class KubernetesApi(Protocol):
    """The requests that reads and token reviews need; every failure is a KubernetesError."""

    async def get(self, path: str, query: Query, *, seconds: float) -> Object: ...

    async def post(self, path: str, body: Object, *, seconds: float) -> Object: ...

    def watch(self, path: str, query: Query, *, silence_seconds: float) -> AsyncIterator[Object]:
        """The events of a watch until the server ends it; an error after ``silence_seconds`` without any byte."""
        ...


class KubernetesClient:
    """``KubernetesApi`` over HTTP; made by ``connect``, ended by ``close``."""

    def __init__(self, connection: client.ApiClient, renew: Callable[[], Awaitable[None]] | None = None) -> None:
        """``renew`` reads the credentials again: what the server does not take may have been replaced in its file."""
        self._connection = connection
        self._renew = renew
        self._renewed = float("-inf")

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> KubernetesClient:
        """A client as this pod's service account, else by the given or default kubeconfig; sends nothing."""
        # The import costs a second and 100 MB, which only a process in a cluster should pay.
        from kubernetes.aio import client, config  # noqa: PLC0415

        configuration = client.Configuration()

        async def load() -> None:
            if kubeconfig is None and SERVICE_ACCOUNT.exists():
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
                configuration.client_session_kwargs = {"trust_env": False}  # the way to it leads through no proxy
            else:
                file = str(kubeconfig) if kubeconfig else None
                await config.load_kube_config(config_file=file, client_configuration=configuration)  # type: ignore[no-untyped-call]

        async def renew() -> None:
            try:
                await load()
            except (config.ConfigException, OSError, ValueError) as error:
                log.warning("the credentials for the Kubernetes API cannot be read again: %s", error)

        await load()
        return cls(client.ApiClient(configuration), renew)

    async def get(self, path: str, query: Query, *, seconds: float) -> Object:
        """The object at ``path``, answered within ``seconds``."""
        return read(*await self.exchange("GET", path, query=query, seconds=seconds))

    async def post(self, path: str, body: Object, *, seconds: float) -> Object:
        """The object that answers ``body`` at ``path``, within ``seconds``."""
        return read(*await self.exchange("POST", path, body=body, seconds=seconds))

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Object | JsonPatch | None = None,
        seconds: float,
    ) -> tuple[int, bytes]:
        """Status and body of one request's answer. RetryableError where no answer comes within ``seconds``.

        A PATCH of a list is a JSON patch, of an object a server-side apply.
        """
        timeouts = aiohttp.ClientTimeout(total=seconds)
        response = await self._send(method, path, query=query or {}, body=body, timeouts=timeouts)
        try:
            await self._noted(response.status)
            return response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _no_answer(error) from error
        finally:
            response.release()

    async def watch(self, path: str, query: Query, *, silence_seconds: float) -> AsyncIterator[Object]:
        """See ``KubernetesApi.watch``."""
        timeouts = aiohttp.ClientTimeout(total=None, sock_connect=silence_seconds, sock_read=silence_seconds)
        response = await self._send("GET", path, query=query, body=None, timeouts=timeouts)
        try:
            if response.status != 200:
                await self._noted(response.status)
                raise error_of(response.status, await response.read())
            while line := await response.content.readline():
                yield _decoded(line)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:  # ValueError: a line too long
            raise _no_answer(error) from error
        finally:
            response.close()

    async def _noted(self, status: int) -> None:
        """After a 401 read the credentials again, for the next request; at most every RENEW_SECONDS."""
        now = time.monotonic()
        if status != 401 or self._renew is None or now - self._renewed < RENEW_SECONDS:
            return
        self._renewed = now
        await self._renew()

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()  # type: ignore[no-untyped-call]

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Query,
        body: Object | JsonPatch | None,
        timeouts: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        patch = "application/json-patch+json" if isinstance(body, list) else _APPLY
        kind = patch if method == "PATCH" else "application/json"
        content = json_as_yaml(body) if kind == _APPLY else body
        try:
            request = await self._connection.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": kind},
                body=content,
                auth_settings=["BearerToken"],
            )
            answer = await self._connection.call_api(*request, _request_timeout=timeouts)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _no_answer(error) from error
        response: aiohttp.ClientResponse = answer.response
        return response


def json_as_yaml(value: Object | JsonPatch | None) -> bytes:
    """JSON that a YAML parser reads the same way: the API server parses applied objects as YAML.

    YAML has no surrogate pairs: characters beyond U+FFFF stand for themselves.
    """
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def read(status: int, text: bytes) -> Object:
    """The object in an answer. KubernetesError for a status other than 2xx or a body that is no JSON object."""
    if not 200 <= status < 300:
        raise error_of(status, text)
    return _decoded(text)


def error_of(status: int, text: bytes) -> KubernetesError:
    """The error of an answer that is not 2xx. A Status object has a reason and a message, a proxy's page has not."""
    try:
        answer = msgspec.json.decode(text, type=Object)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = {}
    reason = str(answer.get("reason") or "Unknown")
    message = str(answer.get("message") or text.decode(errors="replace").strip())[:MAX_MESSAGE]
    retryable = status in {0, 401, 408, 409, 429} or (status >= 500 and not message.startswith(_REFUSALS))
    return (RetryableError if retryable else RefusedError)(status, reason, message)


def _no_answer(error: Exception) -> RetryableError:
    return RetryableError(0, "NoAnswer", f"{type(error).__name__}: {error}")


def _decoded(text: bytes) -> Object:
    try:
        return msgspec.json.decode(text, type=Object)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RetryableError(0, "NotAnObject", f"the answer is not a JSON object: {error}") from error
