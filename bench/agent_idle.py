"""CPU and memory of a real agent beside an engine that does nothing: ``python -m bench.agent_idle``.

Its engine is a fake one with the plugin's routes, its control plane a real one; nothing is asked of either, so what is
left are polls, the watch of the policy file and a State each second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.parts import POOL, WORKER, agent_environment, fake_engine, plane, process, status_of
from cachefleet_core.tenancy import FleetKey

READY_SECONDS: Final = 60.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process so far, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_of(pid: int) -> float:
    """MiB resident."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def measured(folder: Path, seconds: float) -> tuple[float, float]:
    """Cores of CPU of an idle agent over so long, and its memory in MiB."""
    key, all_cores = FleetKey.generate(), os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(fake_engine(folder, key.worker_key(POOL), core=all_cores, plugin=True))
        running = stack.enter_context(plane(folder, key, {WORKER: engine}, core=all_cores, until="listening"))
        environment = agent_environment(folder, running, WORKER, engine)
        arguments = ["-m", "cachefleet_worker.agent"]
        agent = stack.enter_context(
            process(arguments, log=folder / "agent.log", core=all_cores, environment=environment)
        )
        deadline = time.monotonic() + READY_SECONDS
        while status_of(f"{running.internal}/readyz") != 200:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the agent did not report: {(folder / 'agent.log').read_text()[-2000:]}")
            time.sleep(0.1)
        time.sleep(2)
        began, before = time.monotonic(), cpu_of(agent.pid)
        time.sleep(seconds)
        return (cpu_of(agent.pid) - before) / (time.monotonic() - began), memory_of(agent.pid)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    with tempfile.TemporaryDirectory() as folder:
        cores, memory = measured(Path(folder), parser.parse_args().seconds)
    print(f"an idle agent: {cores:.4f} cores, {memory:.0f} MiB")
