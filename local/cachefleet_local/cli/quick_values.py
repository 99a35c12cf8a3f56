"""Values of options without pydantic, which typer imports for each of them: a third of a listing's time.

Strings, numbers, paths and choices are converted here. Whatever is not plainly right, and every other type, is left to
typer, with its messages; so is everything where typer has no such conversion.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any


class _Quick:
    """Stands in for typer's conversion of one parameter."""

    def __init__(self, parameter: Any) -> None:
        self._described = parameter.type_descriptor
        self._typers = parameter.get_runtime_param

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """The value in the parameter's type."""
        try:
            return self._converted(value)
        except (TypeError, ValueError):
            return self._typers().coerce(value, param=param, ctx=ctx)

    def _converted(self, value: Any) -> Any:
        wanted, info = self._described.annotation, self._described.parameter_info
        if value is None:
            return None
        if info.parser is not None or not isinstance(wanted, type) or not isinstance(value, str | int | float | Path):
            raise TypeError
        converts: Any = wanted
        if issubclass(wanted, Enum) or wanted in {str, Path}:
            return converts(value)
        if wanted not in {int, float}:
            raise TypeError
        number = converts(value)
        if (info.min is not None and number < info.min) or (info.max is not None and number > info.max):
            raise ValueError
        return number


def quickened(command: Any) -> Any:
    """The command, and its subcommands, with quick conversions of all parameters."""
    all_of = command.get_params
    command.get_params = lambda ctx: quick_parameters(all_of(ctx))
    for one in getattr(command, "commands", {}).values():
        quickened(one)
    return command


def quick_parameters(parameters: Iterable[Any]) -> list[Any]:
    """The parameters, converted quickly."""
    return [_quick(one) if one.nargs == 1 and not getattr(one, "multiple", False) else one for one in parameters]


def _quick(parameter: Any) -> Any:
    if hasattr(parameter, "get_runtime_param") and "get_runtime_param" not in vars(parameter):
        quick = _Quick(parameter)
        parameter.get_runtime_param = lambda: quick
    return parameter
