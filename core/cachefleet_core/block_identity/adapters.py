"""How block keys name an adapter (LoRA): by its name and the place that its weights were loaded from.

An engine keys an adapter's blocks by name and path, and its events carry the name alone, with a number that stays when
the name is loaded from another path. The worker plugin puts the *revision* in place of that number: a digest of the
path. So a name that means other weights has other block keys, wherever they are computed.
"""

from __future__ import annotations

import hashlib
from typing import Final

FIRST_REVISION: Final = 1 << 62
"""Smallest revision: engines number their adapters from 1."""


def path_revision(path: str) -> int:
    """The revision of an adapter loaded from a path, in 63 bits."""
    digest = hashlib.sha256(path.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") % FIRST_REVISION + FIRST_REVISION


def adapter_namespace(name: str, revision: int) -> str:
    """An adapter as the namespace of block keys has it. ValueError for a number that is no revision."""
    if revision < FIRST_REVISION:
        raise ValueError("an adapter's revision must be told by the worker plugin")
    return f"{name}@{revision:x}"
