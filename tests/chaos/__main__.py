"""``python -m tests.chaos [ROUNDS]``: run the tests of all faults, and write docs/reliability.md."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.chaos.measurements import FILE, ROOT, read
from tests.chaos.reliability_page import PAGE, page
from tests.chaos.rows import ROWS

NODE = "e2e/node/"
"""Tests of the node are run by themselves: see `make e2e`."""


def main(rounds: int) -> int:
    """The exit status of the first round that failed, or 0."""
    FILE.unlink(missing_ok=True)
    tests = dict.fromkeys(test for row in ROWS for test in row.tests if not test.startswith(NODE))
    environment = os.environ | {"HYPOTHESIS_PROFILE": "nightly"}
    statuses = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--timeout", "7200", *tests]
        statuses.append(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(page(read(), before), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name} written\n")
    return next(filter(None, statuses), 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
