"""The models that an API key may use, by their names. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_controlplane.pools.model_aliases import ANY, matches
from cachefleet_controlplane.wire.errors import MODEL_NOT_FOUND, ApiError, shown
from cachefleet_controlplane.workers.views import ServedModel

MAX_MODELS: Final = 64
"""Names and patterns of one key."""
MODELS_NAMED: Final = 16
"""Of these, those that an error tells."""
MAX_NAME: Final = 256
"""Characters of each."""


class AllowedModels:
    """Names and patterns in which ``*`` stands for any characters, none too."""

    __slots__ = ("_names", "_patterns", "given")

    def __init__(self, given: Iterable[str]) -> None:
        self.given = tuple(given)
        self._names = frozenset(one for one in self.given if ANY not in one)
        self._patterns = tuple(one for one in self.given if ANY in one)

    def allow(self, name: str) -> bool:
        """Whether a name is among them."""
        return name in self._names or any(matches(pattern, name) for pattern in self._patterns)

    def allow_model(self, model: ServedModel, asked: str = "") -> bool:
        """Whether a model may be used under the name that was ``asked`` for: by that, an alias say, or by its own, but
        for an adapter also its base's.
        """
        named = (bool(asked) and self.allow(asked)) or self.allow(model.name)
        return named or (not model.is_adapter and self.allow(model.base))

    def check(self, model: ServedModel, asked: str) -> None:
        """ApiError 404 for a model that may not be used, as for one that there is not; 400 where none was asked for."""
        if not self.allow_model(model, asked):
            raise self.refusal(asked)

    def refusal(self, asked: str) -> ApiError:
        """404 for a model that may not be used, or that there is not, 400 where none is named; with the names of those
        that may be used, and no others.
        """
        names, more = self.given[:MODELS_NAMED], len(self.given) - MODELS_NAMED
        allowed = f"This API key may use: {', '.join(names)}{f' and {more} more' if more > 0 else ''}."
        if not asked:
            return ApiError(400, f"`model` is required. {allowed}", param="model", code="missing_required_parameter")
        told = f"The model `{shown(asked)}` does not exist, or this API key may not use it. {allowed}"
        return ApiError(404, told, param="model", code=MODEL_NOT_FOUND)
