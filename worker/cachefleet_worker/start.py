"""``python3 -m cachefleet_worker.start ARGUMENTS``: vLLM's server as a container's first process.

Linux drops a signal to the first process of a container that has no handler for it, and vLLM has one only once it is
loaded: a pod that was deleted before would hold its device until its whole grace period is over.
"""

from __future__ import annotations

import os
import runpy
import signal
from typing import Final

SERVER: Final = "vllm.entrypoints.openai.api_server"
ENDED: Final = 128 + signal.SIGTERM
"""The exit status of a process that SIGTERM ended."""


def main(server: str = SERVER) -> None:
    """Run the server, which sets handlers of its own, in this process."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ENDED))  # the rest of the container ends with its first process
    runpy.run_module(server, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
