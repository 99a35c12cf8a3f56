"""Fetches revisions of adapters (LoRA) before an engine loads them: vLLM itself knows none of them.

A pool's adapter from a hub at a revision is ``{"name": ..., "path": "ID@REVISION"}`` after ``--lora-modules``. The path
becomes the folder that was fetched, whose name has the commit: so blocks of different commits have different keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cachefleet_core.pool.adapter_options import ADAPTERS, PATH_STARTS, REVISION

Fetch = Callable[[str, str], str]
"""Of a hub id and a revision; returns the folder. OSError or ValueError where it cannot be had."""


class AdapterError(Exception):
    """An adapter cannot be fetched; the message says which and why."""


def fetch(source: str, revision: str) -> str:
    """By the hub's own client, which vLLM has, into its cache; "" is the hub's default revision."""
    hub: Any = import_module("huggingface_hub")
    return str(hub.snapshot_download(source, revision=revision or None))


def with_fetched(arguments: Sequence[str], fetch: Fetch = fetch) -> list[str]:
    """The arguments with folders in place of hub ids at revisions. AdapterError."""
    modules = set(_modules(arguments))
    return [_fetched(word, fetch) if place in modules else word for place, word in enumerate(arguments)]


def adapter_folders(arguments: Sequence[str]) -> dict[str, Path]:
    """The adapters among the arguments that are loaded from folders, by name."""
    read = (_read(arguments[place]) for place in _modules(arguments))
    return {str(one.get("name")): Path(one["path"]) for one in read if one and one["path"].startswith(PATH_STARTS)}


def _modules(arguments: Sequence[str]) -> Iterator[int]:
    """Places of the arguments that may each describe an adapter in JSON."""
    inside = False
    for place, word in enumerate(arguments):
        inside = word == ADAPTERS or (inside and not word.startswith("-"))
        if inside and word.startswith("{"):
            yield place


def _read(word: str) -> dict[str, Any] | None:
    """An adapter of a pool; None for what is not, of which vLLM says what is wrong with it."""
    try:
        module = json.loads(word)
        return {**module, "path": str(module["path"])}
    except (ValueError, TypeError, KeyError):
        return None


def folder_of(path: str, fetch: Fetch = fetch) -> str:
    """A path as it is; of a hub id, with a revision or without, the folder that was fetched. AdapterError."""
    if path.startswith(PATH_STARTS):
        return path
    source, _, revision = path.partition(REVISION)
    try:
        return fetch(source, revision)
    except (OSError, ValueError) as error:  # the hub's errors are both
        at = f" at {revision}" if revision else ""
        raise AdapterError(f"{source}{at} cannot be fetched: {error}") from error


def _fetched(word: str, fetch: Fetch) -> str:
    module = _read(word)
    if module is None or REVISION not in module["path"]:
        return word
    try:
        folder = folder_of(module["path"], fetch)
    except AdapterError as error:
        raise AdapterError(f"adapter {module.get('name')}: {error}") from error
    return word if folder == module["path"] else json.dumps({**module, "path": folder})
