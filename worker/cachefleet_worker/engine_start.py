"""``python3 -m cachefleet_worker.engine_start ARGUMENTS``: vLLM's server as a container's first process.

Linux drops a signal to a container's first process that has no handler for it, and vLLM sets its handlers only once it
is loaded: a pod deleted before that would hold its device until the end of its grace period.
"""

from __future__ import annotations

import os
import runpy
import signal
from typing import Final

SERVER: Final = "vllm.entrypoints.openai.api_server"
ENDED: Final = 128 + signal.SIGTERM
"""Exit status of a process ended by SIGTERM."""


def main(server: str = SERVER) -> None:
    """Exit with 143 on SIGTERM until the server, run in this process, sets its own handlers."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ENDED))  # the rest of the container ends with its first process
    runpy.run_module(server, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
