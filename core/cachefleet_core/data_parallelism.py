"""How many data-parallel ranks a worker of a pool may have, as the pool declares it. Pure."""

from __future__ import annotations

from typing import Final

from cachefleet_core.pool.worker_spec import EngineSpec

_OPTIONS: Final = ("--data-parallel-size", "-dp")
_FILE: Final = "--config"
"""vLLM's option for a file with more options, which nobody here reads."""
_VARIABLE: Final = "VLLM_DP_SIZE"


def declared_ranks(engine: EngineSpec) -> int | None:
    """The data-parallel size that the engine's extra arguments or environment set, 1 where they set none.

    None where it cannot be known from the pool: it comes from a file, from another object, or is no number.
    """
    words = [word for argument in engine.extra_args for word in _words(argument)]
    given = [after for word, after in zip(words, [*words, ""][1:], strict=True) if word in _OPTIONS]
    given += [env.value or "" for env in engine.env if env.name == _VARIABLE]
    if _FILE in words or not all(value.isdecimal() and int(value) for value in given):
        return None
    return max(map(int, given), default=1)


def _words(argument: str) -> list[str]:
    """The option, with dashes, and its value where both are one word; any other argument as it is."""
    name, equals, value = argument.partition("=")
    if not name.startswith("-"):
        return [argument]
    return [name.replace("_", "-"), value] if equals else [name.replace("_", "-")]
