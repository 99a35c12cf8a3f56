"""A request's own ``cache_hit_threshold``: from 0 to 1, at the top level of a chat or completion, or in its xargs."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, is_null, members

FIELD: Final = "cache_hit_threshold"
MESSAGE: Final = f"Parameter `{FIELD}` must be between 0.0 and 1.0 if provided."

_number = msgspec.json.Decoder(float)


def own_threshold(fields: Fields) -> float | None:
    """The top level's, else that of ``vllm_xargs``; None where neither has one. ApiError 400 for what is none."""
    nested = {} if is_null(fields, "vllm_xargs") else members(fields["vllm_xargs"]) or {}
    given = [_checked(part[FIELD]) for part in (fields, nested) if not is_null(part, FIELD)]
    return given[0] if given else None


def _checked(raw: Raw) -> float:
    try:
        value = _number.decode(raw)
    except READ_ERRORS as error:
        raise _refused() from error
    if not 0.0 <= value <= 1.0:
        raise _refused()
    return value


def _refused() -> ApiError:
    return ApiError(400, MESSAGE, param=FIELD)
