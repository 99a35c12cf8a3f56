"""Builds what the tests of a cluster and a node need, beside tests that need neither: programs, then images.

On a new machine that is a quarter of an hour. Nothing depends on it: who needs a part builds it, or waits for it here.
"""

from __future__ import annotations

import subprocess
import sys

from e2e.cluster.binaries import HELM, NODE_PROGRAMS, UnavailableError, ensured, find
from e2e.cluster.control_plane import StartError
from e2e.node.containerd import ContainerdError
from e2e.node.images import ImageError
from e2e.node.machine import check_machine
from e2e.node.node import Node


def main() -> int:
    try:
        ensured((HELM,))  # in the order in which tiers ask
        find()
        ensured(NODE_PROGRAMS)
        check_machine()
        with Node():
            return 0
    except (UnavailableError, StartError, ContainerdError, ImageError, subprocess.CalledProcessError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
