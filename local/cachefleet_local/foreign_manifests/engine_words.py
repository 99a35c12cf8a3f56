"""vLLM's command line, word by word: what a pool has fields for, what follows from it, what stays an argument."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final

from cachefleet_core.pool.managed_arguments import managed_arguments
from cachefleet_local.foreign_manifests.draft import PoolDraft, refused, share, text, truth, whole

_SHORT: Final = {"-tp": "--tensor-parallel-size", "-dp": "--data-parallel-size", "-pp": "--pipeline-parallel-size"}
_SECRET: Final = frozenset({"--hf-token"})
_SWITCHES: Final = {"--enable-prefix-caching": True, "--no-enable-prefix-caching": False}
_PROGRAM: Final = ("vllm", "serve")


def _positive(source: str, value: Any) -> int:
    return whole(source, value, least=1)


_FIELDS: Final[dict[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "--block-size": ("engine.blockSize", _positive),
    "--data-parallel-size": ("engine.dataParallelSize", _positive),
    "--dtype": ("engine.dtype", text),
    "--max-model-len": ("engine.maxModelLen", _positive),
    "--model": ("model.source", text),
    "--revision": ("model.revision", text),
    "--served-model-name": ("model.name", text),
    "--tensor-parallel-size": ("engine.tensorParallelSize", _positive),
}
"""Options that take a value, and the pool's field that each becomes."""


def read_words(draft: PoolDraft, source: str, value: Any) -> None:
    """Take a list of words, or one text of them, as vLLM's arguments."""
    words = shlex.split(value) if isinstance(value, str) else [str(word) for word in _listed(source, value)]
    if tuple(words[:2]) == _PROGRAM:
        words = words[2:]
        if words and not words[0].startswith("-"):
            words = ["--model", *words]
    for option, given in _options(words):
        _take(draft, f"{source} ({option})", option, given)


def _listed(source: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or any(isinstance(word, dict | list) for word in value):
        raise refused(source, value, "must be a list of words")
    return value


def _options(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Options in their full spelling, each with the words after it that are none."""
    held: tuple[str, list[str]] | None = None
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit():
            if held:
                yield held
            name, equals, rest = word.partition("=")
            name = _SHORT.get(name, name.replace("_", "-") if name.startswith("--") else name)
            held = name, [rest] if equals else []
        elif held:
            held[1].append(word)
        else:
            yield word, []
    if held:
        yield held


def _take(draft: PoolDraft, source: str, option: str, given: list[str]) -> None:
    first = given[0] if given else ""
    if option in _FIELDS:
        path, convert = _FIELDS[option]
        draft.put(path, convert(source, first))
        draft.became(source, f"spec.{path}")
    elif option in _SWITCHES:
        draft.put("prefixCache.enabled", _SWITCHES[option] if not given else truth(source, first))
        draft.became(source, "spec.prefixCache.enabled")
    elif option == "--gpu-memory-utilization":
        draft.utilization = share(source, first)
        draft.became(source, "spec.device.floorMiB: the rest of the device's memory is not touched")
    elif option == "--kv-transfer-config":
        draft.put("engine.kvTransfer", _json(source, first))
        draft.became(source, "spec.engine.kvTransfer")
    elif option in _SECRET:
        draft.lacks(source, "may be a credential, which is not copied: name a Secret in spec.model.hubTokenSecretRef")
    elif not option.startswith("-"):
        draft.lacks(source, "is a word that belongs to no option")
    elif (managed := next(managed_arguments([option]), None)) is not None:
        draft.spares(source, managed.instead)
    else:
        draft.arguments += [option, *given]
        draft.became(source, "spec.engine.extraArgs")


def _json(source: str, value: str) -> Any:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise refused(source, value, "must be a JSON object", hidden=True)
    return found
