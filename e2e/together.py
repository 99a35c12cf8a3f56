"""Which tests pytest-xdist gives to one process, with ``--dist loadgroup``.

Those whose ids name a thing that is there once, or is shared, stay together. pytest-xdist's own groups
(``xdist_group``) are none since pytest 9.2: it writes them into an attribute of the item, of which pytest makes the id
no longer.
"""

from __future__ import annotations

import hashlib
from typing import Final

from xdist.scheduler import LoadScopeScheduling

ALONE: Final = "alone"
"""The parameter of a session's fixture that there is to be once, and so part of the ids of all tests that use it."""
ENGINE: Final = "engine_"
"""What the parameter of a shared engine begins with."""
IMPORTS_VLLM: Final = "imports vLLM"
_IN_PROCESS: Final = ("tests/core/", "tests/worker/")
_BY_FILE: Final = "e2e/engine/"


def engine_name(options: object) -> str:
    """Equal for equal options."""
    return ENGINE + hashlib.blake2s(repr(options).encode(), digest_size=4).hexdigest()


def together(test: str) -> str:
    """What it has in common with the tests that are to run in the same process; its id, where that is nothing."""
    file, _, name = test.partition("::")
    parameters = name.partition("[")[2].removesuffix("]").split("-")
    for parameter in parameters:
        if parameter == ALONE or parameter.startswith(ENGINE):
            return parameter
    if file.startswith(_IN_PROCESS):
        return IMPORTS_VLLM
    return file if file.startswith(_BY_FILE) else test


class Together(LoadScopeScheduling):  # type: ignore[misc]  # published without types
    """Gives out all tests that belong together as one piece of work."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)
