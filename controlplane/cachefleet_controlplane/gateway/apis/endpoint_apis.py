"""The API of each endpoint, and that of chats and completions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import cachefleet_native

from cachefleet_controlplane.gateway.apis.api import Api
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.apis.responses import ResponsesApi
from cachefleet_controlplane.gateway.send.worker_answer import Answer


class ChatApi(Api):
    """Chats and completions: token ids and usage are always asked for, and taken out where the client did not."""

    def whole(self, info: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """As the base, without token ids that the client did not ask for."""
        answer = super().whole(info, answer, sent=sent)
        if not info.ids_wanted or answer.status == 400:
            return answer
        return Answer(answer.status, answer.headers, cachefleet_native.without_token_ids(answer.body))


_KINDS: Final[Mapping[Endpoint, type[Api]]] = MappingProxyType(
    {Endpoint.CHAT: ChatApi, Endpoint.COMPLETIONS: ChatApi, Endpoint.RESPONSES: ResponsesApi}
)
_APIS: Final[Mapping[Endpoint, Api]] = MappingProxyType(
    {endpoint: _KINDS.get(endpoint, Api)(endpoint) for endpoint in Endpoint}
)


def api_of(endpoint: Endpoint) -> Api:
    """Return the API of an endpoint; one object for all requests."""
    return _APIS[endpoint]
