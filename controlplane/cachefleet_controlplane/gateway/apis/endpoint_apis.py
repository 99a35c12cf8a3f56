"""The API of each endpoint, and that of embeddings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.api import Api, PassingApi, plain_ask
from cachefleet_controlplane.gateway.apis.chat import ChatApi, CompletionsApi
from cachefleet_controlplane.gateway.apis.messages import CountTokensApi, MessagesApi
from cachefleet_controlplane.gateway.apis.request_info import MAX_INPUTS, Bypass, Endpoint, RequestInfo, within_bounds
from cachefleet_controlplane.gateway.apis.responses import ResponsesApi
from cachefleet_controlplane.wire.json_members import Fields, count_of


class EmbeddingsApi(PassingApi):
    """``/v1/embeddings``: routed by load alone."""

    def understand(self, fields: Fields, *, model: str, size: int) -> RequestInfo:
        """Read a body; nothing is rendered, and one token of output is counted."""
        info = plain_ask(
            Endpoint.EMBEDDINGS,
            fields,
            model=model,
            size=size,
            stream=False,
            max_tokens=1,
            bypass=Bypass.EMBEDDINGS,
        )
        return replace(info, prompts=within_bounds(count_of(fields.get("input")), most=MAX_INPUTS, param="input"))


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
