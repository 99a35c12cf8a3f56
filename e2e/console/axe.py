"""axe-core from npm, pinned by hash, kept under ~/.cache/cachefleet; what it finds serious on a page."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Page

VERSION: Final = "4.14.1"
INTEGRITY: Final = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cachefleet"
_SERIOUS: Final = frozenset({"serious", "critical"})
_RUN: Final = "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"


def axe_source() -> str:
    """The script. The test is skipped where npm is not there, or cannot reach its registry; fails for a wrong hash."""
    kept = _CACHE / f"axe-core-{VERSION}.tgz"
    if not kept.exists():
        _fetch(kept)
    content = kept.read_bytes()
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    assert digest == INTEGRITY, f"{kept} is not axe-core {VERSION}; remove it"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member
        return member.read().decode()


def _fetch(kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm to fetch axe-core with; on Debian: apt-get install npm")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [npm, "pack", "--silent", f"axe-core@{VERSION}"], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"npm cannot fetch axe-core: {done.stderr.strip()[-200:]}")
        shutil.move(next(Path(folder).glob("*.tgz")), kept)


async def serious(page: Page, source: str) -> list[str]:
    """What is serious or worse on a page: rule, and the elements that break it."""
    await page.evaluate(source)
    found: list[dict[str, Any]] = await page.evaluate(_RUN)
    return [f"{one['id']}: {[node['target'] for node in one['nodes']]}" for one in found if one["impact"] in _SERIOUS]
