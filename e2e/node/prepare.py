"""Builds what the tests of a cluster and a node need, beside tests that need neither: programs, then images.

On a new machine that is a quarter of an hour. Nothing depends on it: who needs a part builds it, or waits for it here.
With ``--aside`` it takes only what other processes leave of the machine; whoever waits for it leaves all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from e2e.cluster.binaries import HELM, NODE_PROGRAMS, PROGRAMS, UnavailableError, ensured
from e2e.cluster.processes import step_aside
from e2e.node.containerd import ContainerdError
from e2e.node.images import ImageError
from e2e.node.node import load_images


def prepare() -> None:
    """All of it, in the order in which tiers ask; of one module all programs at once."""
    given = os.environ.get("KUBEBUILDER_ASSETS")
    ensured((HELM, *(() if given else PROGRAMS), *NODE_PROGRAMS))
    load_images()


def main() -> int:
    signal.signal(signal.SIGTERM, _leave)
    if "--aside" in sys.argv[1:]:
        step_aside()
    try:
        prepare()
    except (UnavailableError, ContainerdError, ImageError, subprocess.CalledProcessError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


def _leave(*_: object) -> None:
    """End as after an error: what runs is ended, and what is half made is removed. Asking again hurries nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
