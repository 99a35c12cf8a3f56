"""KEDA's source without all of its scalers but one: half as many packages to compile, and none of what we try less.

Its scalers are one package with the clients of every cloud: 3,400 packages in all, 1,950 without them.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

PARTS: Final = ("apis", "cmd", "controllers", "pkg", "version")
SCALER: Final = "prometheus"
KEPT: Final = frozenset({"scaler.go", f"{SCALER}_scaler.go", "azure_queue_scaler.go"})
"""The last one has a constant in it that all scalers use."""
_BUILDER: Final = "pkg/scaling/scalers_builder.go"
_OTHERS: Final = re.compile(rf'^\tcase "(?!{SCALER}")[^"]+":\n(?:^\t\t.*\n)+', re.MULTILINE)


def write(source: Path, folder: Path) -> None:
    """Copy KEDA's module into a new folder, trimmed."""
    folder.mkdir()
    for name in PARTS:
        shutil.copytree(source / name, folder / name, copy_function=shutil.copyfile)
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(source / name, folder / name)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)  # the module cache is read-only
    for path in (folder / "pkg/scalers").glob("*.go"):
        if path.name not in KEPT:
            path.unlink()
    builder = folder / _BUILDER
    builder.write_text(trimmed(builder.read_text()))


def trimmed(builder: str) -> str:
    """The function that makes scalers by their names, for one of them."""
    return _OTHERS.sub("", builder)
