"""CEL expressions about a device, evaluated as Kubernetes does: driver, attributes and capacity (pure).

Whoever may write a pool writes them, and they are evaluated before the API server has seen them. So their work is
bounded by what they may be: short, and with one macro at most, since one in another multiplies.

celpy is imported by the first expression: it takes a third of a second, and few fleets have one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celpy import Runner

_SUFFIXES: Final[Mapping[str, Decimal]] = {
    **{name: Decimal(1024) ** (power + 1) for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
    **{name: Decimal(1000) ** (power + 1) for power, name in enumerate(("k", "M", "G", "T", "P", "E"))},
    "m": Decimal("0.001"),
    "u": Decimal("0.000001"),
    "n": Decimal("0.000000001"),
    "": Decimal(1),
}
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?)"
)
_KINDS: Final = ("bool", "int", "string", "version")
MAX_LENGTH: Final = 1024
"""Characters of an expression that is evaluated here."""
MOST: Final = 1 << 63
"""CEL's whole numbers are below."""
_MACRO: Final = re.compile(r"\b(?:all|exists|exists_one|map|filter|reduce|min)\b")


class SelectorError(ValueError):
    """An expression that cannot be evaluated here."""


class NoConditionError(SelectorError):
    """An expression that gives something else than true or false, which Kubernetes refuses."""


def fulfils(expressions: Sequence[str], driver: str, device: Mapping[str, Any]) -> bool:
    """Whether a device of a ResourceSlice fulfils all of them. One that asks for what a device does not have is not
    fulfilled. SelectorError for one that cannot be evaluated here, or is no condition.
    """
    described: dict[str, Any] = {"driver": driver, "attributes": {}, "capacity": {}}
    for part, read in (("attributes", _attribute), ("capacity", capacity_bytes)):
        for name, value in (device.get(part) or {}).items():
            domain, _, identifier = str(name).rpartition("/")
            described[part].setdefault(domain or driver, {})[identifier] = read(value)
    return all(_holds(expression, described) for expression in expressions)


def capacity_bytes(value: Mapping[str, Any]) -> int | None:
    """A capacity as the whole number that its quantity is; None where that is none, or more than CEL's numbers."""
    try:
        return quantity(value.get("value"))
    except ValueError:
        return None


def quantity(text: Any) -> int:
    """Kubernetes' quantity, rounded down to a whole number. ValueError where it is none."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text} is not a quantity")
    number = int(Decimal(found[1]) * _SUFFIXES[found[2]])
    if not -MOST <= number < MOST:
        raise ValueError(f"{text} is more than CEL's whole numbers of 64 bits")
    return number


def _attribute(value: Mapping[str, Any]) -> Any:
    return next((value[kind] for kind in _KINDS if kind in value), None)


def _holds(expression: str, described: dict[str, Any]) -> bool:
    if len(expression) > MAX_LENGTH:
        raise SelectorError(f"{expression[:40]!r}... is longer than the {MAX_LENGTH} characters that are read here")
    if len(_MACRO.findall(expression)) > 1:
        raise SelectorError(f"{expression!r} has more than the one macro (all, exists, map...) that is evaluated here")
    from celpy.adapter import json_to_cel  # noqa: PLC0415 - see above
    from celpy.celparser import CELParseError  # noqa: PLC0415
    from celpy.celtypes import BoolType  # noqa: PLC0415
    from celpy.evaluation import CELEvalError  # noqa: PLC0415

    try:
        given = _program(expression).evaluate({"device": json_to_cel(described)})
    except CELParseError as error:
        raise SelectorError(f"{expression!r} cannot be read here") from error
    except RecursionError as error:
        raise SelectorError(f"{expression!r} is nested too deeply") from error
    except CELEvalError as error:
        if "undeclared reference" in str(error):
            raise SelectorError(f"{expression!r} has a function that is not known here") from error
        return False
    if not isinstance(given, BoolType | bool):
        raise NoConditionError(f"{expression!r} gives {_named(given)}, and must give true or false")
    return bool(given)


def _named(value: Any) -> str:
    """CEL's name of a value's type."""
    return "null" if value is None else type(value).__name__.removesuffix("Type").lower()


@lru_cache(maxsize=256)
def _program(expression: str) -> Runner:
    from celpy import Environment  # noqa: PLC0415 - see above

    environment = Environment()
    return environment.program(environment.compile(expression), functions=_functions())


@lru_cache(maxsize=1)
def _functions() -> dict[str, Any]:
    """Those of Kubernetes' quantities."""
    from celpy.celtypes import BoolType, IntType  # noqa: PLC0415 - see above

    return {
        "quantity": lambda text: IntType(quantity(text)),
        "isGreaterThan": lambda one, other: BoolType(one > other),
        "isLessThan": lambda one, other: BoolType(one < other),
        "compareTo": lambda one, other: IntType((one > other) - (one < other)),
    }
