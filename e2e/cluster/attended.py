"""A cluster that a person uses until Ctrl-C: its kubeconfig is where commands look for it while it is there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def published(kubeconfig: Path, path: Path) -> Iterator[None]:
    """A copy of a kubeconfig at ``path``, readable by its owner alone, while the block runs."""
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(kubeconfig.read_text())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def wait_for_signal() -> None:
    """Until this process is asked to end."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
