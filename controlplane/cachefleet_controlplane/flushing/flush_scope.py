"""What somebody wants flushed, and the models that it means: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.workers.views import ServedModel

_ELSEWHERE: Final = ("input", "system", "endpoint", "conversation")
"""Members of bodies that are neither a chat's nor a completion's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is to be flushed: all that is named holds at once."""

    model: str | None = None
    """A served model or adapter, or namespace/name."""
    pool: str | None = None
    """As namespace/name."""
    worker: str | None = None
    """Its name, namespace/pool/name, or with #rank one rank alone."""
    tenant: str | None = None
    prompt: Mapping[str, Any] | None = None
    """Body of a chat or completion."""
    everything: bool = False

    def check(self) -> None:
        """ApiError 422 unless it names something, and a prompt that can be rendered."""
        named = [self.model, self.pool, self.worker, self.tenant, self.prompt]
        if all(each is None for each in named) and not self.everything:
            raise _wrong("scope", "name a model, pool, worker, tenant or prompt; to flush everything say `all: true`")
        if self.everything and any(each is not None for each in named):
            raise _wrong("scope.all", "goes with nothing else: leave out either it or what else is named")
        if self.prompt is not None:
            _check_prompt(self.prompt)


def models_meant(scope: Scope, models: Sequence[ServedModel], asked: ServedModel | None) -> list[ServedModel]:
    """The models whose workers are meant; ``asked`` is the one of ``scope.model``. ApiError names the wrong field."""
    if scope.model is not None:
        if asked is None:
            known = ", ".join(one.name for one in models) or "none"
            raise ApiError(404, f"no model `{scope.model}` is served; there are: {known}", param="scope.model")
        models = [asked]
    if scope.pool is not None:
        every = [pool for one in models for pool in one.pools]
        models = [one for one in models if scope.pool in one.pools]
        if not models:
            raise ApiError(404, _no_pool(scope, every), param="scope.pool")
    if scope.prompt is not None and len(models) != 1:
        choice = ", ".join(one.name for one in models) or "none is served"
        raise _wrong("scope.model", f"a prompt needs the model that renders it: {choice}")
    return list(models)


def _no_pool(scope: Scope, every: Sequence[str]) -> str:
    of_model = f" of model `{scope.model}`" if scope.model is not None else ""
    return f"there is no pool `{scope.pool}`{of_model}; there are: {', '.join(every) or 'none'}"


def _check_prompt(prompt: Mapping[str, Any]) -> None:
    if found := [name for name in _ELSEWHERE if name in prompt]:
        raise _wrong(f"scope.prompt.{found[0]}", "give a chat (`messages`) or a completion (`prompt`)")
    given = [name for name in ("messages", "prompt") if prompt.get(name)]
    if len(given) != 1:
        raise _wrong("scope.prompt", "give `messages`, or `prompt` as a text or a list of token ids: one of them")
    try:
        msgspec.json.encode(prompt)
    except (UnicodeEncodeError, RecursionError) as error:
        raise _wrong("scope.prompt", "has half a character (a lone surrogate), or is nested too deeply") from error


def _wrong(field: str, message: str) -> ApiError:
    return ApiError(422, message, param=field)
