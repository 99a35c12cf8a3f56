"""The model that a request names, else that of the conversation which it continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec import Raw
from msgspec.structs import replace

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.admit.alias_choice import chosen, conversation_of
from cachefleet_controlplane.gateway.apis.request_info import POOLED, SPEECH, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.converse.rehydration import PREVIOUS, previous_id
from cachefleet_controlplane.gateway.converse.response_histories import Histories
from cachefleet_controlplane.gateway.request.request import NO_ARRIVAL, Request
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.tenants.allowed_models import AllowedModels
from cachefleet_controlplane.wire.errors import MODEL_NOT_FOUND, ApiError, shown
from cachefleet_controlplane.wire.headers import MODEL_REWRITES, Header, has_any
from cachefleet_controlplane.wire.http_exchange import Scope
from cachefleet_controlplane.wire.json_members import encode
from cachefleet_controlplane.workers.views import AliasedModel, ServedModel

MODELS_NAMED: Final = 16
"""Names in the error for an unknown model."""


MISDIRECTED: Final = "misdirected_request"
HAVING: Final = {
    **dict.fromkeys(SPEECH, "a pool of a speech model does, as Whisper"),
    **dict.fromkeys(POOLED, "a pool of a pooling model does that was trained for it"),
    Endpoint.EMBEDDINGS: "a pool of a pooling model does (`--runner pooling`)",
}
"""Who has an endpoint that not every model has."""
_ELSEWHERE: Final = "Model `{}` is served by control plane `{}`: ask its gateway."


class ElsewhereError(ApiError):
    """421: a model that another control plane serves, to which the request was not passed on."""

    def __init__(self, model: str, control_plane: str, message: str = "") -> None:
        super().__init__(421, message or _ELSEWHERE.format(model, control_plane), param="model", code=MISDIRECTED)
        self.model = model
        self.control_plane = control_plane


class LastModel(Protocol):
    """What a client's connection remembers of its last request."""

    model: str
    """"" before any."""

    def holds(self, response: str) -> bool:
        """Whether that is the response which it remembers."""
        ...


class ModelLookup:
    """Finds the models of requests.

    ``histories`` are the stored responses, ``memory_of`` returns what the connection that a scope came by remembers.
    """

    def __init__(
        self, fleet: Fleet, histories: Histories | None, memory_of: Callable[[Scope], LastModel | None]
    ) -> None:
        self._fleet = fleet
        self._histories = histories
        self._memory_of = memory_of

    async def of(
        self, request: Request, info: RequestInfo, allowed: AllowedModels | None = None
    ) -> tuple[RequestInfo, ServedModel]:
        """Return what a request's body says (``info``), and its model, which it names then, of those that are
        ``allowed``, None for all.

        ElsewhereError where another control plane serves it, ApiError 400, 404; 503 where the store that knows it
        cannot be read.
        """
        name, arrival = info.model, request.arrival
        memory = None if arrival is NO_ARRIVAL else self._memory_of(arrival.scope)
        if not name and len(self._fleet.models()) != 1:
            name = await self._continued(info, request.tenant, memory)
            info = _naming(info, name)
        model = self._fleet.serving(name) if name else None
        if model is None:
            model = await self._other(name, request, info, memory, allowed)
        if allowed is not None:
            allowed.check(model, name)
        if memory is not None:
            memory.model = model.name
        if info.endpoint in HAVING and self._serves(model, info.endpoint) is False:
            raise self._no_endpoint(name or model.name, info.endpoint, allowed)
        return info, model

    async def _other(
        self, name: str, request: Request, info: RequestInfo, memory: LastModel | None, allowed: AllowedModels | None
    ) -> ServedModel:
        """The model that a name means which is none's own; errors as of ``of``."""
        aliased = self._aliased(name, allowed)
        if len(aliased) > 1:
            return await self._shared(aliased, request, info, memory)
        return aliased[0].model if aliased else find_model(self._fleet, name)

    def _aliased(self, name: str, allowed: AllowedModels | None) -> Sequence[AliasedModel]:
        """The models that a name means as an alias: of several those that are allowed, where any is."""
        aliased = self._fleet.aliased(name) if name else ()
        if allowed is None or len(aliased) < 2:
            return aliased
        return [one for one in aliased if allowed.allow_model(one.model, name)] or aliased

    def _no_endpoint(self, asked: str, endpoint: Endpoint, allowed: AllowedModels | None) -> ApiError:
        """404 for an endpoint that no worker of a model announces, with the allowed models that have it."""
        having = (one for one in self._fleet.models() if self._serves(one, endpoint))
        others = [one.name for one in having if allowed is None or allowed.allow_model(one)][:MODELS_NAMED]
        whose = "here" if allowed is None else "that this API key may use"
        hint = f"No model {whose} has it: {HAVING[endpoint]}."
        if others:
            hint = f"Ask {' or '.join(f'`{name}`' for name in others)}."
        return ApiError(404, f"The model `{shown(asked)}` has no {endpoint}. {hint}")

    def _serves(self, model: ServedModel, endpoint: Endpoint) -> bool | None:
        """Whether any worker of a model serves that; None where not all of them say."""
        told = [hello.endpoints for hello in self._fleet.announced(model.name)]
        serving = any(endpoint in (paths or ()) for paths in told)
        return True if serving else False if told and None not in told else None

    async def _shared(
        self, aliased: Sequence[AliasedModel], request: Request, info: RequestInfo, memory: LastModel | None
    ) -> ServedModel:
        """Return that of the models of one alias which made the response that a request continues, else the one of its
        conversation: of those with a ready worker, where there are any.
        """
        before = self._fleet.serving(await self._continued(info, request.tenant, memory))
        if before is not None and (same := [one.model for one in aliased if one.model.pools == before.pools]):
            return same[0]
        ready = [one for one in aliased if not self._fleet.lacks_workers(one.model.name)] or aliased
        headers = () if request.arrival is NO_ARRIVAL else request.arrival.scope["headers"]
        return chosen(
            [(one.model, one.model.base, one.weight) for one in ready],
            conversation_of(info, headers, request.tenant.name),
        )

    async def _continued(self, info: RequestInfo, tenant: TenantRecord, memory: LastModel | None) -> str:
        """The model of the response that a request continues, else the last one of its connection; "" for neither."""
        continues = info.endpoint is Endpoint.RESPONSES and info.ask.gives(PREVIOUS)
        previous = previous_id(info) if continues else ""
        if memory is not None and (not previous or memory.holds(previous)):
            return memory.model
        stored = await self._histories.model(tenant.name, previous) if previous and self._histories else ""
        return stored or ("" if memory is None else memory.model)


def rewritten(info: RequestInfo, headers: Iterable[Header]) -> RequestInfo:
    """The request for the model that a header names in place of its body's, as llm-d's clients write it."""
    name = model_header(headers) if has_any(headers, MODEL_REWRITES) else ""
    return _naming(info, name) if name else info


def model_header(headers: Iterable[Header]) -> str:
    """The model that a header names in place of the body's; "" for none."""
    return next((value.decode("latin-1") for header, value in headers if header in MODEL_REWRITES and value), "")


def _naming(info: RequestInfo, name: str) -> RequestInfo:
    """The request with a model's name in its body."""
    return replace(info.with_fields(info.fields | {"model": Raw(encode(name))}), model=name)


def find_model(fleet: Fleet, name: str) -> ServedModel:
    """Return the model that a client names, of those that share an alias the one with the largest weight; the only one
    of this control plane where it names none.

    ElsewhereError where another control plane serves it; ApiError 400 or 404.
    """
    if name and (served := fleet.serving(name)) is not None:
        return served
    if name and (aliased := fleet.aliased(name)):
        return max(aliased, key=lambda one: one.weight).model
    if name and (other := fleet.elsewhere(name)) is not None:
        raise ElsewhereError(name, other.control_plane)
    if not name and len(models := fleet.models()) == 1:
        return models[0]
    names = [one.name for one in (*fleet.models(adapters=True), *fleet.models_elsewhere())]
    raise no_such_model(name, [*names, *fleet.aliases(patterns=True)])


def listed_model(fleet: Fleet, name: str) -> ServedModel:
    """Return the model that a client names, also one that another control plane serves. ApiError 400 or 404."""
    other = fleet.elsewhere(name)
    return find_model(fleet, name) if other is None else other.model


def no_such_model(asked: str, valid_names: Sequence[str]) -> ApiError:
    """404 for a model that there is not, 400 where none is named; with the names of some that there are, as vLLM."""
    names, more = valid_names[:MODELS_NAMED], len(valid_names) - MODELS_NAMED
    rest = f" and {more} more (GET /v1/models)" if more > 0 else ""
    valid = f"Valid names: {', '.join(names)}{rest}." if names else "There are no models yet."
    if not asked:
        return ApiError(400, f"`model` is required. {valid}", param="model", code="missing_required_parameter")
    return ApiError(404, f"The model `{shown(asked)}` does not exist. {valid}", param="model", code=MODEL_NOT_FOUND)
