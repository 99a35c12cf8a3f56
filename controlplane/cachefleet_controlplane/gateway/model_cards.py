"""``/v1/models``: OpenAI's members, with the capabilities of the fleet of a model; Anthropic's for its clients.

Codex, which names its version in the query, reads ``models``. Its members there are of its own maker's models
(instructions among them), so it gets none, and uses what it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final
from urllib.parse import parse_qs

import msgspec

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import GENERATING, POOLED, SPEECH, TOKENIZING
from cachefleet_controlplane.tenants.allowed_models import AllowedModels
from cachefleet_controlplane.wire.errors import ANTHROPIC_PATH, ApiError
from cachefleet_controlplane.wire.http_exchange import JSON, Receive, Reply, Scope
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.engine.engine_configuration import lacks_prefix_cache
from cachefleet_core.pool.policy import PreemptionPolicy
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.report_frames import Hello

Json = dict[str, object]

MODELS_PATH: Final = "/v1/models"
OWNER: Final = "cachefleet"
ANTHROPIC_VERSION: Final = b"anthropic-version"
CODEX_VERSION: Final = "client_version"
MAX_QUERY: Final = 1024
"""Bytes of a query that are read."""
_RUNNER: Final = "--runner"
_LISTED: Final = (*GENERATING, *POOLED, *SPEECH, *TOKENIZING)


class ModelListing:
    """Handler of ``/v1/models`` and what is below it; ``find`` returns the model of a name (ApiError 404), ``allowed``
    the models that a request's key may use, None for all.
    """

    def __init__(
        self, fleet: Fleet, find: Callable[[str], ServedModel], allowed: Callable[[Scope], AllowedModels | None]
    ) -> None:
        self._fleet = fleet
        self._find = find
        self._allowed_models = allowed

    async def __call__(self, scope: Scope, _: Receive, reply: Reply) -> None:
        """Answer with one model, or with all."""
        name, anthropic = scope["path"].removeprefix(MODELS_PATH).removeprefix("/"), is_anthropic(scope)
        if anthropic:
            reply.path = ANTHROPIC_PATH
        allowed = self._allowed_models(scope)
        names = self._allowed(name, allowed)
        cards = [self._card(named, allowed, anthropic=anthropic) for named in names]
        told = cards[0] if name else anthropic_list(cards) if anthropic else openai_list(cards, codex=_is_codex(scope))
        await reply.whole(200, [JSON], msgspec.json.encode(told))

    def _allowed(self, name: str, allowed: AllowedModels | None) -> Sequence[str]:
        """Return the name that is asked for, else all names; of these what a key may use. ApiError 404."""
        if allowed is None:
            return [name] if name else self._names()
        if not name:
            return [one for one in self._names() if self._allows(allowed, one)]
        try:
            self._find(name)
        except ApiError as error:
            raise allowed.refusal(name) from error
        if not self._allows(allowed, name):
            raise allowed.refusal(name)
        return [name]

    def _allows(self, allowed: AllowedModels, name: str) -> bool:
        """Whether a name may be asked for: of those that share an alias one is enough."""
        models = [one.model for one in self._fleet.aliased(name)] or [self._find(name)]
        return any(allowed.allow_model(model, name) for model in models)

    def _names(self) -> list[str]:
        models = (*self._fleet.models(adapters=True), *self._fleet.models_elsewhere())
        return [*(model.name for model in models), *self._fleet.aliases()]

    def _card(self, name: str, allowed: AllowedModels | None, *, anthropic: bool) -> Json:
        shared = [one.model for one in sorted(self._fleet.aliased(name), key=lambda one: -one.weight)]
        may_ask = [one for one in shared if allowed is None or allowed.allow_model(one)]
        model = next(iter(may_ask or shared), None) or self._find(name)
        announced = self._fleet.announced(model.name)
        if anthropic:
            found = anthropic_card(model, announced)
        else:
            found = card(model, announced) if self._fleet.serving(model.name) else card_elsewhere(model)
        if allowed is not None and not allowed.allow(model.base):
            found.pop("parent", None)
        return under(name, [one.name for one in may_ask], found) if shared else found


def is_anthropic(scope: Scope) -> bool:
    """Whether Anthropic's client asks, whose path says so only where it differs from OpenAI's."""
    return any(name == ANTHROPIC_VERSION for name, _ in scope["headers"])


def _is_codex(scope: Scope) -> bool:
    return CODEX_VERSION in parse_qs(scope.get("query_string", b"")[:MAX_QUERY].decode("latin-1"))


def under(name: str, roots: Sequence[str], told: Json) -> Json:
    """Return a model's object under the alias that was asked for. ``roots`` are those of the models that it means which
    the client may ask for, the one with the largest weight first: ``root`` is that of one, ``roots`` are several.
    """
    if "display_name" in told:
        return told | {"id": name, "display_name": name}
    means = {} if not roots else {"root": roots[0]} if len(roots) == 1 else {"roots": list(roots)}
    return told | {"id": name} | means


def openai_list(cards: Sequence[Json], *, codex: bool) -> Json:
    """Return OpenAI's list of models; for ``codex`` with the member that it reads."""
    listed: Json = {"object": "list", "data": cards}
    return listed | {"models": []} if codex else listed


def anthropic_list(cards: Sequence[Json]) -> Json:
    """Return Anthropic's list of models, which is all of it."""
    first, last = (cards[0]["id"], cards[-1]["id"]) if cards else (None, None)
    return {"data": cards, "has_more": False, "first_id": first, "last_id": last}


def anthropic_card(model: ServedModel, announced: Sequence[Hello]) -> Json:
    """Return one model's object as Anthropic has it."""
    longest = _longest(model, announced)
    return {
        "type": "model",
        "id": model.name,
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": longest,
        "max_tokens": longest,
    }


def card(model: ServedModel, announced: Sequence[Hello]) -> Json:
    """Return one model's object; ``announced`` are the Hellos of its ready workers.

    An adapter names its model as ``parent``.

    A capability is true where every one of them has it, so that it does not depend on routing.
    """
    longest = _longest(model, announced)
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": OWNER,
        "max_model_len": longest,
        "context_window": longest,
        "max_output_tokens": longest,
        **({"parent": model.base} if model.is_adapter else {}),
        "capabilities": {
            "endpoints": endpoints(model.declared, announced),
            "prefix_caching": _caches(model, announced),
            "cache_hit_threshold": _all_have(announced, "gate"),
            "hand_back": _all_have(announced, "preemption") and all(map(_hands_back, model.declared)),
            "workers": len({(hello.pool, hello.worker) for hello in announced}),
        },
    }


def card_elsewhere(model: ServedModel) -> Json:
    """Return the object of a model that another control plane serves: what its pools declare, and which one that is."""
    told = card(model, ())
    capabilities = {"endpoints": endpoints(model.declared), "control_plane": model.declared[0].spec.control_plane}
    return told | {"capabilities": capabilities}


def endpoints(pools: Iterable[PrefixCachePool], announced: Sequence[Hello] = ()) -> list[str]:
    """Return the paths that every worker of pools serves: as their engines tell, where all of them do.

    Else as pools are declared, of which a pooling runner generates nothing.
    """
    told = [hello.endpoints for hello in announced]
    if told and None not in told:
        return [path for path in _LISTED if all(path in (served or ()) for served in told)]
    pooling = {_pools(pool.spec.engine.extra_args) for pool in pools}
    return [*(GENERATING if False in pooling else ()), *(POOLED if True in pooling else ()), *TOKENIZING]


def _longest(model: ServedModel, announced: Sequence[Hello]) -> int | None:
    """In tokens, as the workers announce it; as declared where none has."""
    return max((hello.max_model_len for hello in announced), default=0) or model.max_model_len


def _all_have(announced: Sequence[Hello], feature: str) -> bool:
    on = [any(one.feature == feature and one.mode != "off" for one in hello.capabilities) for hello in announced]
    return bool(on) and all(on)


def _caches(model: ServedModel, announced: Sequence[Hello]) -> bool:
    lacking = any(lacks_prefix_cache(hello.configuration) for hello in announced)
    return not lacking and all(pool.spec.prefix_cache.enabled for pool in model.declared)


def _hands_back(pool: PrefixCachePool) -> bool:
    return pool.spec.preemption.policy == PreemptionPolicy.HAND_BACK and pool.spec.preemption.reject_below > 0


def _pools(arguments: Sequence[str]) -> bool:
    joined = [*arguments, ""]
    given = {one.partition("=")[2] for one in arguments if one.startswith(_RUNNER + "=")}
    return "pooling" in given | {after for one, after in pairwise(joined) if one == _RUNNER}
