"""The API of each endpoint, and that of chats and completions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import cachefleet_native

from cachefleet_controlplane.gateway.apis.api import Api, PassingApi
from cachefleet_controlplane.gateway.apis.messages import CountTokensApi, MessagesApi
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.apis.responses import ResponsesApi
from cachefleet_controlplane.gateway.send.answers.stream_filter import StreamFilter
from cachefleet_controlplane.gateway.send.worker_answer import Answer


class ChatApi(PassingApi):
    """Chats and completions: token ids and usage are always asked for, and taken out where the client did not."""

    def whole(self, info: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """As the base, without token ids that the client did not ask for."""
        answer = super().whole(info, answer, sent=sent)
        if not info.ids_wanted or answer.status == 400:
            return answer
        return Answer(answer.status, answer.headers, cachefleet_native.without_token_ids(answer.body))

    def transformer(self, info: RequestInfo, fingerprint: bytes | None) -> StreamFilter:
        """Return the filter that takes out usage and ids where the client did not ask for them."""
        return StreamFilter(
            strip_usage=info.stream and not info.usage_asked,
            strip_ids=info.ids_wanted,
            single=info.single,
            fingerprint=fingerprint,
            echoes=info.sequences if info.echo else 0,
        )


_APIS: Final[Mapping[Endpoint, Api]] = MappingProxyType(
    {
        Endpoint.CHAT: ChatApi(),
        Endpoint.COMPLETIONS: ChatApi(),
        Endpoint.RESPONSES: ResponsesApi(),
        Endpoint.MESSAGES: MessagesApi(),
        Endpoint.EMBEDDINGS: PassingApi(),
        Endpoint.COUNT_TOKENS: CountTokensApi(),
    }
)


def api_of(endpoint: Endpoint) -> Api:
    """Return the API of an endpoint; one object for all requests."""
    return _APIS[endpoint]
