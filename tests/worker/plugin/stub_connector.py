"""A KV connector that says it has what ``kv_transfer_params`` of a request claim, and notes how requests end.

It moves nothing: what is "loaded" is whatever lies in the blocks. ``claim`` is in tokens beyond the local hit; with
``asynchronous`` the load is said to take a while.
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class StubConnector(KVConnectorBase_V1):
    """Both sides of it in one."""

    finished: ClassVar[dict[str, tuple[str, int]]] = {}
    """How each request of this process ended: its status, and the blocks it had."""
    asked: ClassVar[list[str]] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self.asked.append(request.request_id)
        given = request.kv_transfer_params or {}
        claim = given.get("claim", 0)
        if claim is None:
            return None, False
        return max(0, min(claim, request.num_prompt_tokens - 1 - num_computed_tokens)), bool(given.get("asynchronous"))

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.finished[request.request_id] = (request.status.name, len(block_ids))
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass
