"""The requests under way of one replica, and their end when it stops and its time to finish them is over."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cachefleet_controlplane.wire.errors import ApiError

RESTARTING: Final = "server_restarting"
RETRY_AFTER_SECONDS: Final = 1
"""Another replica may be asked at once; where there is one alone, it takes longer."""


class AnswersUnderWay:
    """Counts the requests of a gateway; each is answered by the task in which it began."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any] | None, int] = {}
        self._ended = set[asyncio.Task[Any]]()
        self._count = 0
        self.stopped = False
        """Answers are ended, since the replica stops."""

    def __len__(self) -> int:
        return self._count

    def begin(self) -> asyncio.Task[Any] | None:
        """Count a request, and return the task that answers it, for ``end``."""
        task = asyncio.current_task()
        self._count += 1
        self._tasks[task] = self._tasks.get(task, 0) + 1
        return task

    def end(self, task: asyncio.Task[Any] | None) -> None:
        """Count a request less, whose answer is over."""
        self._count -= 1
        self._tasks[task] -= 1
        if not self._tasks[task]:
            del self._tasks[task]

    def stop(self) -> int:
        """End all answers now, with an error that tells clients to ask again; their number."""
        self.stopped = True
        for task in list(self._tasks):
            if task is not None and task not in self._ended:
                self._ended.add(task)
                task.cancel("the replica stops")
        return self._count

    def ended(self) -> bool:
        """Whether ``stop`` alone has cancelled this task; to be called once, since it takes the cancellation back."""
        task = asyncio.current_task()
        if task is None or task not in self._ended:
            return False
        self._ended.discard(task)
        return task.uncancel() == 0


def restarting() -> ApiError:
    """503: this replica stops, and has not finished the answer in time."""
    message = "The server restarts, and this answer was not finished in time. Send the request again."
    return ApiError(503, message, code=RESTARTING, headers={"retry-after": str(RETRY_AFTER_SECONDS)})
