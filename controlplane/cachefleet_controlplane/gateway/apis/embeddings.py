"""Embeddings: routed by load alone."""

from __future__ import annotations

from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.api import PassingApi, plain_ask
from cachefleet_controlplane.gateway.apis.request_info import MAX_INPUTS, Bypass, Endpoint, RequestInfo, within_bounds
from cachefleet_controlplane.wire.json_members import Fields, count_of


class EmbeddingsApi(PassingApi):
    """``/v1/embeddings``."""

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
