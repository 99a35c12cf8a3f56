"""The process of one simulation: a job on standard input, a list of figures on standard output, both msgpack."""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from cachefleet_controlplane.simulation.simulate import simulate
from cachefleet_controlplane.simulation.simulation_job import Job

NICENESS: Final = 10
"""Requests go first."""


def main() -> None:
    """Run it."""
    os.nice(NICENESS)
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.msgpack.encode(simulate(job)))


if __name__ == "__main__":
    main()
