"""A thread for work that no request should wait for: preparing a tokenizer, checking samples."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from cachefleet_worker.plugin.plugin_faults import Faults

QUEUE_LENGTH: Final = 16

Job = Callable[[], None]


class Background:
    """Runs jobs one after another. The thread starts with the first job and ends with the process."""

    def __init__(self, faults: Faults, feature: str) -> None:
        self._faults = faults
        self._feature = feature
        self._jobs: queue.Queue[Job] = queue.Queue(QUEUE_LENGTH)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, job: Job) -> bool:
        """Queue a job; False, and the job is dropped, where the queue is full."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                # Not at import: vLLM forks its engine early, and a fork has no copies of threads.
                self._thread = threading.Thread(target=self._run, name=f"cachefleet-{self._feature}", daemon=True)
                self._thread.start()
        return True

    def settle(self) -> None:
        """Wait until every queued job has run."""
        self._jobs.join()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                with self._faults.guard(self._feature):
                    job()
            finally:
                self._jobs.task_done()
