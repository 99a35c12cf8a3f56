"""``python -m tests.reporting.steps TIER COMMAND ...``: a tier without pytest; its commands run until one fails."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.reporting import record
from tests.reporting.budgets import BY_NAME, Tier
from tests.reporting.closing import closing, totals


def main(arguments: Sequence[str], folder: Path = record.FOLDER) -> int:
    """The exit status of the command that failed, or 0."""
    name, *commands = arguments
    status, run = ran(BY_NAME[name], commands)
    record.keep(folder, name, run)
    sys.stdout.write("\n".join([*closing(name, run), totals(run.passed, len(run.failed), 0), ""]))
    return status


def ran(tier: Tier, commands: Sequence[str]) -> tuple[int, record.Run]:
    """Commands count like tests, each by its own text."""
    seconds: dict[str, float] = {}
    status = 0
    for command in commands:
        started = time.monotonic()
        status = subprocess.run(shlex.split(command), check=False).returncode
        seconds[command] = time.monotonic() - started
        if status:
            break
    failed = (command,) if status else ()
    passed = len(seconds) - len(failed)
    spent = sum(seconds.values())
    return status, record.Run(seconds=spent, budget=tier.seconds, passed=passed, failed=failed, tests=seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
