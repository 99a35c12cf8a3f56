"""The API of each endpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cachefleet_controlplane.gateway.apis.api import Api
from cachefleet_controlplane.gateway.apis.chat import ChatApi, CompletionsApi
from cachefleet_controlplane.gateway.apis.embeddings import EmbeddingsApi
from cachefleet_controlplane.gateway.apis.messages import CountTokensApi, MessagesApi
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.apis.responses import ResponsesApi

_APIS: Final[Mapping[Endpoint, Api]] = MappingProxyType(
    {
        Endpoint.CHAT: ChatApi(),
        Endpoint.COMPLETIONS: CompletionsApi(),
        Endpoint.RESPONSES: ResponsesApi(),
        Endpoint.MESSAGES: MessagesApi(),
        Endpoint.EMBEDDINGS: EmbeddingsApi(),
        Endpoint.COUNT_TOKENS: CountTokensApi(),
    }
)


def api_of(endpoint: Endpoint) -> Api:
    """Return the API of an endpoint; one object for all requests."""
    return _APIS[endpoint]
