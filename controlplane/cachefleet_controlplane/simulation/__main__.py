"""The process of one simulation: a job on standard input, a list of figures on standard output.

Its arguments are the most seconds of processor time and bytes of memory that it may take.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

import msgspec

from cachefleet_controlplane.simulation.job_stream import read_job
from cachefleet_controlplane.simulation.run_result import TooMuchWorkError
from cachefleet_controlplane.simulation.simulate import simulate
from cachefleet_controlplane.simulation.simulation_job import NO_MEMORY, TOO_MUCH_WORK

NICENESS: Final = 10
"""Requests go first."""


def main() -> None:
    """Run it."""
    os.nice(NICENESS)
    seconds, memory = (int(argument) for argument in sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # also where nobody is left who would end it
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    try:
        figures = msgspec.msgpack.encode(simulate(read_job(sys.stdin.buffer)))
    except MemoryError:
        os._exit(NO_MEMORY)  # at once: there is no memory for the exception of sys.exit either
    except TooMuchWorkError:
        sys.exit(TOO_MUCH_WORK)
    sys.stdout.buffer.write(figures)


if __name__ == "__main__":
    main()
