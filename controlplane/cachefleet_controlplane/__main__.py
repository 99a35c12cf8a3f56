"""``python -m cachefleet_controlplane``: one replica of the control plane.

Exits with 2 and one line on stderr where native code, which the other modules import, cannot be used.
"""

from __future__ import annotations

import gc
import sys

from cachefleet_core.native import lacking
from cachefleet_runtime import logs


def main() -> int:
    """Run a replica; the exit status."""
    if problem := lacking():
        logs.refuse([f"the control plane needs native code: {problem}"])
        return 2
    gc.disable()  # imports leave no garbage, and looking for it is a fifth of a start; replica_process enables it again
    from cachefleet_controlplane.wiring import replica_process  # noqa: PLC0415 - imports native code

    return replica_process.main()


if __name__ == "__main__":
    sys.exit(main())
