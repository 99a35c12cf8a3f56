"""The two sides of the index benchmark: ours in native code, and Dynamo's radix tree from its published wheel.

Each takes events as bytes, in the form it knows, made before anything is timed: ours msgpack frames, Dynamo JSON, which
is all that its binding takes.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final, Protocol

import cachefleet_native

from bench.index_work import Chain, Work
from cachefleet_core.report_frames import Delta, Removed, Stored, encode

PEERS: Final = Path.home() / ".cache" / "cachefleet" / "bench-peers"
DYNAMO: Final = "ai-dynamo-runtime"


class Side(Protocol):
    """An index under test; ``apply`` takes what ``stored`` or ``removed`` made."""

    name: str

    def stored(self, chain: Chain) -> Any: ...

    def removed(self, chain: Chain) -> Any: ...

    def question(self, keys: bytes) -> Callable[[], Any]:
        """What to call to ask about a prompt, with nothing of ours between."""
        ...

    def apply(self, event: Any) -> None: ...

    def settle(self) -> None:
        """Returns when everything applied is in force."""

    def depths(self, answer: Any) -> dict[int, int]:
        """Workers that hold some of a prompt, from an answer."""
        ...


class Ours:
    """The native index, by way of its frames and packed keys."""

    name = "cachefleet"

    def __init__(self, work: Work) -> None:
        self.index = cachefleet_native.Index(max_held=1 << 27)
        self._names = [f"default/demo/worker-{number}#0" for number in range(work.workers)]
        self.candidates = cachefleet_native.Candidates(self._names)
        self._sequence = 0

    def stored(self, chain: Chain) -> tuple[str, bytes]:
        return self._frame(chain, Stored(chain.parent, chain.keys))

    def removed(self, chain: Chain) -> tuple[str, bytes]:
        return self._frame(chain, Removed(chain.reverse))

    def question(self, keys: bytes) -> Callable[[], bytes]:
        return partial(self.index.match_packed, keys, self.candidates)

    def apply(self, event: tuple[str, bytes]) -> None:
        self.index.ingest(*event)

    def settle(self) -> None:
        """``ingest`` returns when it is done."""

    def depths(self, answer: bytes) -> dict[int, int]:
        return {number: depth for number, depth in enumerate(memoryview(answer).cast("I")) if depth}

    def _frame(self, chain: Chain, operation: Stored | Removed) -> tuple[str, bytes]:
        self._sequence += 1
        return self._names[chain.worker], encode(Delta(sequence=self._sequence, operations=(operation,)))


class Dynamo:
    """``dynamo.llm.RadixTree``: applies events on a thread of its own."""

    name = DYNAMO

    def __init__(self, _work: Work) -> None:
        self._tree = dynamo().RadixTree()
        self._event = 0

    def stored(self, chain: Chain) -> tuple[int, bytes]:
        blocks = [{"block_hash": key, "tokens_hash": key} for key in _keys(chain.keys)]
        return self._json(chain, {"stored": {"parent_hash": chain.parent or None, "blocks": blocks}})

    def removed(self, chain: Chain) -> tuple[int, bytes]:
        return self._json(chain, {"removed": {"block_hashes": _keys(chain.reverse)}})

    def question(self, keys: bytes) -> Callable[[], Any]:
        return partial(self._tree.find_matches, _keys(keys))

    def apply(self, event: tuple[int, bytes]) -> None:
        self._tree.apply_event(*event)

    def settle(self) -> None:
        self._tree.find_matches([1])

    def depths(self, answer: Any) -> dict[int, int]:
        return {worker: depth for (worker, _rank), depth in answer.scores.items() if depth}

    def _json(self, chain: Chain, data: dict[str, Any]) -> tuple[int, bytes]:
        self._event += 1
        return chain.worker, json.dumps({"event_id": self._event, "data": data, "dp_rank": 0}).encode()


def dynamo() -> Any:
    """Dynamo's binding, from a folder of its own; installed there the first time."""
    os.environ.setdefault("DYN_LOG", "error")  # read when it is imported
    return _peer(DYNAMO, "dynamo._core")


def orjson() -> Any:
    """The fastest published JSON reader for Python, likewise."""
    return _peer("orjson", "orjson")


def versions() -> str:
    found = [f"cachefleet_native {cachefleet_native.__version__}"]
    for package in (DYNAMO, "orjson"):
        found += [f"{package} {one.version}" for one in distributions(name=package, path=[str(PEERS / package)])]
    return ", ".join(found)


def _peer(package: str, module: str) -> Any:
    folder = PEERS / package
    if not folder.exists():
        print(f"installing {package} into a cache folder of its own", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), package]
        subprocess.run(pip, check=True)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(module)


def _keys(packed: bytes) -> list[int]:
    return memoryview(packed).cast("Q").tolist()
