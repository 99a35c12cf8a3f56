"""A plugin of vLLM that breaks the functions it is told to break, to see that vLLM goes on without them."""

from __future__ import annotations

import os
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "CACHEFLEET_TEST_FAULTS"


def distribution(folder: Path) -> Path:
    """A folder to be imported from, in which vLLM finds this plugin as "faulty"."""
    info = folder / "faulty" / "faulty-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nfaulty = e2e.engine.faulty:register\n")
    return info.parent


def register() -> None:
    """Break what the environment names, as "module:path", in this process."""
    for target in filter(None, os.environ.get(VARIABLE, "").split(",")):
        module, _, path = target.partition(":")
        owner, _, name = path.rpartition(".")
        found: Any = import_module(module)
        setattr(attrgetter(owner)(found) if owner else found, name, _broken)


def _broken(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("broken for a test")
