"""The thread for what no request should wait for."""

from __future__ import annotations

import threading
import time

import pytest

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.tokens import background_tokenizer
from cachefleet_worker.plugin.tokens.background_tokenizer import Background


class PanicException(BaseException):
    """As PyO3 raises it."""


def panic() -> None:
    raise PanicException


def test_the_background_drops_what_it_has_no_room_for() -> None:
    worker = Background(Faults(Capabilities()), "tokens")
    gate = threading.Event()
    assert worker.submit(lambda: assert_waited(gate))
    deadline = time.monotonic() + 5
    while worker._jobs.qsize() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert all(worker.submit(lambda: None) for _ in range(background_tokenizer.QUEUE_LENGTH))
    assert not worker.submit(lambda: None)
    gate.set()
    worker.settle()
    assert worker.submit(lambda: None)


def assert_waited(gate: threading.Event) -> None:
    assert gate.wait(5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_background_lives_on_after_a_panic() -> None:
    worker = Background(Faults(Capabilities()), "tokens")
    assert worker.submit(panic)
    worker.settle()
    assert worker._thread is not None
    worker._thread.join(5)
    done = threading.Event()
    assert worker.submit(done.set)
    assert done.wait(5)
