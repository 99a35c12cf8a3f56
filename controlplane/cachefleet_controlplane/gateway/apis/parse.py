"""Parses a client's body to a RequestInfo, and makes the body that a worker is sent instead.

A body is parsed once, one level deep: every value the client sent stays the bytes it was. Removed is what only the
control plane may set (tenancy, transfers between workers, ranks); added are the tenant's salt and, where an API has
them, requests for usage and token ids, which are taken out of the reply again.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.endpoint_apis import api_of
from cachefleet_controlplane.gateway.apis.output_schemas import check_output_schemas
from cachefleet_controlplane.gateway.apis.request_info import (
    TRANSFER_FIELD,
    Endpoint,
    RequestInfo,
)
from cachefleet_controlplane.gateway.apis.retention_hints import cache_key, hinted
from cachefleet_controlplane.wire.json_members import (
    Fields,
    encode,
    first_of,
    is_list,
    is_null,
    members,
    parse_fields,
    text,
)
from cachefleet_core.continuation import APPEND_MEMBER, REF_MEMBER, RETURN_MEMBER

_PRIVATE_FIELDS: Final = frozenset(
    {
        "cache_salt",
        TRANSFER_FIELD,
        "ec_transfer_params",
        "mm_payload",
        "data_parallel_rank",
    }
)
_OF_COMPLETIONS: Final = frozenset({REF_MEMBER, APPEND_MEMBER, RETURN_MEMBER})
"""Only the API of token ids takes them from clients."""
_OF_TRUSTED: Final = frozenset({"priority", "request_id", "session_id"})
"""An engine orders requests, names them and finds their sessions by these: only a trusted tenant may say them."""
_PRIVATE_XARGS: Final = frozenset({TRANSFER_FIELD, "ec_transfer_params", "kv_cache_report_mode", "cache_salt"})
_PRIVATE_XARGS_PREFIX: Final = "cachefleet"


def parse(body: bytes, endpoint: Endpoint, *, trusted: bool = False) -> RequestInfo:
    """Return the RequestInfo of a body; ``trusted`` keeps what only a trusted tenant may say.

    ApiError 400 where it is not a JSON object, its model is not text, or it asks for what no worker is asked.
    """
    return understand(parse_fields(body), endpoint, trusted=trusted)


def understand(fields: Fields, endpoint: Endpoint, *, trusted: bool = False) -> RequestInfo:
    """As ``parse``, of a body that is split into its members."""
    private = _PRIVATE_FIELDS if trusted else _PRIVATE_FIELDS | _OF_TRUSTED
    kept = _sanitised(fields, private if endpoint is Endpoint.COMPLETIONS else private | _OF_COMPLETIONS)
    check_output_schemas(kept, endpoint)
    info = api_of(endpoint).understand(hinted(kept, endpoint), model=text(fields, "model"), size=len(fields))
    key = cache_key(kept, endpoint)
    return replace(info, cache_key=key) if key else info


def upstream_body(info: RequestInfo, *, model: str, salt: str, gated: bool = False) -> tuple[bytes, int]:
    """Return a worker's body and its number of members; ``model`` is the engine's name for it, ``salt`` may be "".

    ``gated``: see ``Api.prepare``.
    """
    fields = upstream_fields(info, model=model, salt=salt, gated=gated)
    return encode(fields), len(fields)


def upstream_fields(info: RequestInfo, *, model: str, salt: str, gated: bool = False) -> Fields:
    """As ``upstream_body``, the members themselves."""
    fields = dict(info.fields)
    if info.model != model and info.model:
        fields["model"] = Raw(encode(model))
    api_of(info.endpoint).prepare(fields, info, salt=salt, gated=gated)
    return fields


def given_ids(info: RequestInfo) -> Raw | None:
    """Return a completion's first prompt where it is a list (of ids, if it is valid) and not truncated, else None."""
    prompt = info.fields.get("prompt")
    if (
        info.endpoint is not Endpoint.COMPLETIONS
        or prompt is None
        or not is_null(info.fields, "truncate_prompt_tokens")
    ):
        return None
    first = first_of(prompt)
    if first is None:
        first = prompt
    return first if is_list(first) else None


def first_prompt(info: RequestInfo) -> Fields:
    """Return the fields with the first prompt alone where there are several: the one that is routed by."""
    prompt = info.fields.get("prompt")
    first = None if info.endpoint is not Endpoint.COMPLETIONS or prompt is None else first_of(prompt)
    return info.fields if first is None else info.fields | {"prompt": first}


def _sanitised(fields: Fields, private: frozenset[str]) -> Fields:
    kept = {name: raw for name, raw in fields.items() if name not in private}
    if "vllm_xargs" in kept:
        kept["vllm_xargs"] = _sanitised_xargs(kept["vllm_xargs"])
    return kept


def _sanitised_xargs(raw: Raw) -> Raw:
    given = members(raw)
    if given is None:
        return raw
    kept = {k: v for k, v in given.items() if k not in _PRIVATE_XARGS and not k.startswith(_PRIVATE_XARGS_PREFIX)}
    return raw if len(kept) == len(given) else Raw(encode(kept))
