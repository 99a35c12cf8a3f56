"""The few requests the control plane makes of a Kubernetes API server: list, watch, and review a token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import aiohttp
import msgspec

if TYPE_CHECKING:
    from kubernetes.aio import client

Object = dict[str, Any]
Query = Mapping[str, str]

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MAX_MESSAGE: Final = 512


class KubeError(Exception):
    """A request that failed; ``status`` is HTTP's, 0 where no answer came."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"Kubernetes API: {status or 'no answer'}: {message[:_MAX_MESSAGE]}")
        self.status = status

    @property
    def gone(self) -> bool:
        """The version asked for is too old: everything must be listed again."""
        return self.status == 410


class KubeApi(Protocol):
    """What the source of pools and the reviews need; every failure is a KubeError."""

    async def get(self, path: str, query: Query, *, seconds: float) -> Object: ...

    async def post(self, path: str, body: Object, *, seconds: float) -> Object: ...

    def watch(self, path: str, query: Query, *, silence_seconds: float) -> AsyncIterator[Object]:
        """The events of a watch until the server ends it; KubeError 0 after ``silence_seconds`` without any byte."""
        ...


class HttpKubeApi:
    """KubeApi over ``kubernetes.aio``, which knows service accounts, kubeconfigs and their tokens' renewal."""

    def __init__(self, connection: client.ApiClient) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> HttpKubeApi:
        """As the service account of this pod, else by a kubeconfig; sends nothing yet."""
        # The import costs a second and 100 MB, which only a control plane in a cluster should pay.
        from kubernetes.aio import client, config  # noqa: PLC0415

        configuration = client.Configuration()
        if kubeconfig is None and _SERVICE_ACCOUNT.exists():
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            file = str(kubeconfig) if kubeconfig else None
            await config.load_kube_config(config_file=file, client_configuration=configuration)  # type: ignore[no-untyped-call]
        return cls(client.ApiClient(configuration))

    async def get(self, path: str, query: Query, *, seconds: float) -> Object:
        return await self._whole("GET", path, query=query, seconds=seconds)

    async def post(self, path: str, body: Object, *, seconds: float) -> Object:
        return await self._whole("POST", path, body=body, seconds=seconds)

    async def watch(self, path: str, query: Query, *, silence_seconds: float) -> AsyncIterator[Object]:
        patience = aiohttp.ClientTimeout(total=None, sock_connect=silence_seconds, sock_read=silence_seconds)
        response = await self._send("GET", path, query=query, body=None, patience=patience)
        try:
            if response.status != 200:
                raise _refusal(response.status, await response.read())
            while line := await response.content.readline():
                yield _decoded(line)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:  # ValueError: a line too long
            raise _no_answer(error) from error
        finally:
            response.close()

    async def close(self) -> None:
        await self._connection.close()  # type: ignore[no-untyped-call]

    async def _whole(
        self, method: str, path: str, *, query: Query | None = None, body: Object | None = None, seconds: float
    ) -> Object:
        patience = aiohttp.ClientTimeout(total=seconds)
        response = await self._send(method, path, query=query or {}, body=body, patience=patience)
        try:
            text = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _no_answer(error) from error
        finally:
            response.release()
        if not 200 <= response.status < 300:
            raise _refusal(response.status, text)
        return _decoded(text)

    async def _send(
        self, method: str, path: str, *, query: Query, body: Object | None, patience: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        try:
            request = await self._connection.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._connection.call_api(*request, _request_timeout=patience)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _no_answer(error) from error
        response: aiohttp.ClientResponse = answer.response
        return response


def _no_answer(error: Exception) -> KubeError:
    return KubeError(0, f"{type(error).__name__}: {error}")


def _refusal(status: int, text: bytes) -> KubeError:
    try:
        message = str(msgspec.json.decode(text, type=Object).get("message", ""))
    except msgspec.DecodeError:
        message = text.decode(errors="replace")
    return KubeError(status, message)


def _decoded(text: bytes) -> Object:
    try:
        return msgspec.json.decode(text, type=Object)
    except msgspec.DecodeError as error:
        raise KubeError(0, f"not a JSON object: {error}") from error
