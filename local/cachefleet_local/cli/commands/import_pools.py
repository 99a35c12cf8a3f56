"""``cachefleet import``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from cachefleet_core.pool.spec import parse_pools
from cachefleet_core.pool.validation_problems import PoolError
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.fleet.pool_file import check
from cachefleet_local.foreign_manifests.documents import KNOWN, read_text
from cachefleet_local.foreign_manifests.draft import PoolDraft
from cachefleet_local.foreign_manifests.finishing import (
    LENGTH,
    MEMORY,
    WEIGHTS,
    Figure,
    Figures,
    finish,
    table,
    yaml_text,
)

STDIN: Final = "-"
_FIGURE: Final = re.compile(r"(?:(?P<pool>[^=]*)=)?(?P<number>[0-9]{1,9})")
_EACH: Final = "of all pools, or as POOL=NUMBER of one; may be repeated."

Files = Annotated[list[str], typer.Argument(metavar="FILE...", help=f"YAML files, - for standard input: {KNOWN}.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the pools to a file.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of all pools, else each document's own.")]
Strict = Annotated[bool, typer.Option("--strict", help="Write nothing, exit 2, where a field has no counterpart.")]
Weights = Annotated[list[str] | None, typer.Option(metavar="MIB", help=f"Memory of weights on a device, {_EACH}")]
Memory = Annotated[list[str] | None, typer.Option(metavar="MIB", help=f"Memory of one device, {_EACH}")]
Length = Annotated[list[str] | None, typer.Option(metavar="TOKENS", help=f"Longest request, where untold, {_EACH}")]


def import_pools(
    files: Files,
    *,
    output: Output = None,
    namespace: Namespace = "",
    strict: Strict = False,
    weights_mib: Weights = None,
    memory_mib: Memory = None,
    max_model_len: Length = None,
) -> None:
    """Write PrefixCachePools after deployments of production-stack, llm-d or KServe.

    Standard error says of each field what it became, or that it has no counterpart; so do comments in the YAML.
    """
    figures = Figures(
        {
            WEIGHTS: _figures(WEIGHTS, weights_mib),
            MEMORY: _figures(MEMORY, memory_mib),
            LENGTH: _figures(LENGTH, max_model_len),
        }
    )
    try:
        drafts = [draft for file in files for draft in read_text(_text(file), _shown(file), namespace=namespace)]
        text = yaml_text(drafts, finish(drafts, figures))
        pools = parse_pools(text)
    except PoolError as error:
        raise FailureError([str(problem) for problem in error.problems], Exit.BAD_INPUT) from error
    check(pools)
    _report(drafts, strict=strict)
    if output is None:
        typer.echo(text, nl=False)
    else:
        _write(output, text)


def _figures(figure: Figure, given: list[str] | None) -> dict[str, int]:
    told: dict[str, int] = {}
    for one in given or []:
        found = _FIGURE.fullmatch(one)
        if found is None:
            raise FailureError([f"{figure.option} {one}: must be a whole number, or POOL=NUMBER"], Exit.BAD_INPUT)
        told[found["pool"] or ""] = int(found["number"])
    return told


def _shown(file: str) -> str:
    return "standard input" if file == STDIN else file


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise FailureError([f"cannot read {_shown(file)}: {reason}"], Exit.BAD_INPUT) from error


def _report(drafts: list[PoolDraft], *, strict: bool) -> None:
    lacking = sum(len(draft.lacking()) for draft in drafts)
    for draft in drafts:
        typer.echo(f"pool {draft.name}, from {draft.origin}", err=True)
        for line in table([draft]):
            typer.echo(f"  {line}", err=True)
    if strict and lacking:
        fields = "1 field has" if lacking == 1 else f"{lacking} fields have"
        raise FailureError([f"{fields} no counterpart; nothing was written (--strict)"], Exit.BAD_INPUT)


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FailureError([f"cannot write {output}: {error.strerror}"], Exit.FAILED) from error
