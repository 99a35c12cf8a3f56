"""From a body to all that a decision needs: the model, the tenant's salt, the prompt's length and its block keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cachefleet_controlplane.fleet import Fleet
from cachefleet_controlplane.gateway.answer import StreamFilter
from cachefleet_controlplane.gateway.errors import ApiError
from cachefleet_controlplane.gateway.memo import KeyMemo
from cachefleet_controlplane.gateway.request import Ask, upstream_body
from cachefleet_controlplane.keying import Keying
from cachefleet_controlplane.renderer import Renderer, Rendering, render_ask
from cachefleet_controlplane.routing import Decision, Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.salting import Salter
from cachefleet_controlplane.views import ServedModel
from cachefleet_core.tenancy import DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Placing:
    """One request, ready to be decided on, as often as need be."""

    fleet: Fleet
    ask: Ask
    model: ServedModel
    body: bytes
    """What a worker is sent."""
    sent: int
    """Members of ``body``."""
    prompt: Prompt
    rendering: Rendering
    render_seconds: float

    def decide(self, *, exclude: frozenset[str] = frozenset()) -> Decision:
        return self.fleet.route(self.model.name, self.prompt, exclude=exclude)

    def sieve(self, fingerprint: bytes | None) -> StreamFilter:
        """For the stream of a worker that signs with ``fingerprint``."""
        ask = self.ask
        return StreamFilter(
            strip_usage=ask.stream and not ask.usage_asked,
            strip_ids=ask.ids_wanted,
            single=ask.single,
            fingerprint=fingerprint,
        )


class Placer:
    """Makes placings; knows the fleet, the renderer and how tenants are salted."""

    def __init__(
        self,
        fleet: Fleet,
        renderer: Renderer,
        *,
        salt_key: bytes,
        memo: KeyMemo | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._renderer = renderer
        self._salter = Salter(salt_key)
        self._memo = memo
        self._clock = clock

    def find(self, model: str) -> ServedModel:
        """The fleet a client means; where it names none, the only one. ApiError 400 or 404."""
        if not model:
            models = self._fleet.models()
            if len(models) != 1:
                raise ApiError(400, "`model` is required.", param="model")
            return models[0]
        served = self._fleet.serving(model)
        if served is None:
            raise ApiError(404, f"The model `{model}` does not exist.", param="model")
        return served

    async def place(self, ask: Ask) -> Placing:
        """Learn all there is to know. ApiError where the model is not served."""
        model = self.find(ask.model)
        salt = self._salter.salt(model.declared, DEFAULT_TENANT)
        engine_name = model.declared[0].spec.model.name
        gated = any(pool.spec.hit.threshold > 0 for pool in model.declared)
        body, sent = upstream_body(ask, model=engine_name, salt=salt, gated=gated)
        began = self._clock()
        rendering = await self._render(ask, model, body, salt=salt)
        seconds = self._clock() - began
        prompt = _prompt(ask, rendering)
        return Placing(self._fleet, ask, model, body, sent, prompt, rendering, seconds)

    async def _render(self, ask: Ask, model: ServedModel, body: bytes, *, salt: str) -> Rendering:
        if self._fleet.policy is RoutingPolicy.ROUND_ROBIN:
            return Rendering()  # nothing of the prompt decides
        first = render_ask(ask)
        if first is not ask:
            body, _ = upstream_body(first, model=model.declared[0].spec.model.name, salt=salt)
        keyer = partial(self._fleet.keyer, model.name, salt=salt)
        keying = Keying(keyer, model.max_model_len, self._memo)
        return await self._renderer.render(first, body, workers=self._fleet.renderers(model.name), keying=keying)


def _prompt(ask: Ask, rendering: Rendering) -> Prompt:
    keyed = rendering.prompt
    return Prompt(
        tokens=keyed.tokens,
        keys=keyed.keys,
        block_size=keyed.block_size,
        max_tokens=ask.max_tokens,
        knowledge=Knowledge.EXACT if keyed.block_size else Knowledge.LOAD,
    )
