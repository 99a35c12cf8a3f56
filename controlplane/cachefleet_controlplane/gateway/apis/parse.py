"""What a client asks for, and what a worker is sent instead.

A body is parsed once, one level deep: every value the client sent stays the bytes it was. Taken out is what only the
control plane may say (tenancy, transfers between workers, ranks); added are the tenant's salt and, where an API has
them, the wish for usage and token ids, which are taken out of the reply again.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from cachefleet_controlplane.gateway.apis.endpoint_apis import api_of
from cachefleet_controlplane.gateway.apis.request_info import (
    Endpoint,
    RequestInfo,
)
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

_PRIVATE_FIELDS: Final = frozenset(
    {
        "cache_salt",
        "kv_transfer_params",
        "ec_transfer_params",
        "mm_payload",
        "data_parallel_rank",
    }
)
_PRIVATE_XARGS: Final = frozenset({"kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "cache_salt"})
_PRIVATE_XARGS_PREFIX: Final = "cachefleet"


def parse(body: bytes, endpoint: Endpoint) -> RequestInfo:
    """Understand a body.

    ApiError 400 where it is no JSON object, names its model otherwise than as text, or asks for what no worker is to be
    asked.
    """
    return understand(parse_fields(body), endpoint)


def understand(fields: Fields, endpoint: Endpoint) -> RequestInfo:
    """See ``parse``."""
    return api_of(endpoint).understand(_sanitised(fields), model=text(fields, "model"), size=len(fields))


def upstream_body(ask: RequestInfo, *, model: str, salt: str, gated: bool = False) -> tuple[bytes, int]:
    """What a worker is sent, and how many members it has; ``model`` is its engine's name for it, ``salt`` may be "".

    ``gated``: see ``Api.prepare``.
    """
    fields = dict(ask.fields)
    if ask.model != model and ask.model:
        fields["model"] = Raw(encode(model))
    api_of(ask.endpoint).prepare(fields, ask, salt=salt, gated=gated)
    return encode(fields), len(fields)


def given_ids(ask: RequestInfo) -> Raw | None:
    """The first prompt, where it is a list that the engine takes as it is; one of ids, if it is sound."""
    prompt = ask.fields.get("prompt")
    if ask.endpoint is not Endpoint.COMPLETIONS or prompt is None or not is_null(ask.fields, "truncate_prompt_tokens"):
        return None
    first = first_of(prompt)
    if first is None:
        first = prompt
    return first if is_list(first) else None


def first_prompt(ask: RequestInfo) -> Fields:
    """The fields with the first prompt alone where there are several: the one that is routed by."""
    prompt = ask.fields.get("prompt")
    first = None if ask.endpoint is not Endpoint.COMPLETIONS or prompt is None else first_of(prompt)
    return ask.fields if first is None else ask.fields | {"prompt": first}


def _sanitised(fields: Fields) -> Fields:
    kept = {name: raw for name, raw in fields.items() if name not in _PRIVATE_FIELDS}
    if "vllm_xargs" in kept:
        kept["vllm_xargs"] = _sanitised_xargs(kept["vllm_xargs"])
    return kept


def _sanitised_xargs(raw: Raw) -> Raw:
    given = members(raw)
    if given is None:
        return raw
    kept = {k: v for k, v in given.items() if k not in _PRIVATE_XARGS and not k.startswith(_PRIVATE_XARGS_PREFIX)}
    return raw if len(kept) == len(given) else Raw(encode(kept))
