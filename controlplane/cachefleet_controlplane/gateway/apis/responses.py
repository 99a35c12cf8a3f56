"""Responses: workers get the whole conversation and store nothing; ``conversations`` does where pools allow it."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.api import Api
from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import NULL

PREVIOUS: Final = "previous_response_id"
_WHOLE: Final = "responses are not stored here. Send the whole conversation as `input`."


def not_stored() -> ApiError:
    """Return the ApiError 400 for a use of stored responses other than to continue, show or delete one."""
    return ApiError(400, "Responses are not stored here: send the whole conversation as `input`.")


def without_history(info: RequestInfo) -> RequestInfo:
    """Return the request. ApiError 400 where it continues a stored response."""
    if info.ask.gives(PREVIOUS):
        raise ApiError(400, f"`{PREVIOUS}` is not supported: {_WHOLE}", param=PREVIOUS)
    return info


class ResponsesApi(Api):
    """``/v1/responses``."""

    def whole(self, info: RequestInfo, answer: Answer, *, sent: int) -> Answer:
        """As the base; the engine adds ``tool_choice`` to a body without tools, and counts it as a member."""
        added = int("tool_choice" not in info.fields and bytes(info.fields.get("tools", NULL)) in {b"null", b"[]"})
        return super().whole(replace(info, size=info.size + added), answer, sent=sent + added)
