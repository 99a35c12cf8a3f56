"""What every test run shares: its reports, how many examples property tests try, when all garbage is looked for."""

import gc
import os
import signal
import sys
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.reporting.durations", "tests.reporting.failures")

# Tests start processes and import vLLM: compiling what is imported once and for all saves more than anything else.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell ignores Ctrl-C for what it runs in the background, and all that is started there would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("default", deadline=None, max_examples=30)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_ended = count(1)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """A full collection stops the process for seconds: from here on there are none within a test."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 1_000_000)


def pytest_runtest_logfinish() -> None:
    """What is left of 200 tests is no garbage of them, and not looked through again."""
    if next(_ended) % 200 == 0:
        gc.collect()
        gc.freeze()
