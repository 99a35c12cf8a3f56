"""A network of the test's own: loopback alone, whose packets iptables may drop, of no concern to the machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

_NEW_NETWORK: Final = 0x40000000


@contextmanager
def own_network() -> Iterator[None]:
    """This thread, and what it starts, is in a new network namespace; skipped where that is not to be had."""
    for program in ("ip", "iptables"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing; on Debian: apt install iproute2 iptables")
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        if libc.unshare(_NEW_NETWORK) != 0:
            pytest.skip(f"no network namespace to be had here: {os.strerror(ctypes.get_errno())}")
        try:
            _run("ip", "link", "set", "lo", "up")
            yield
        finally:
            assert libc.setns(before.fileno(), _NEW_NETWORK) == 0


@contextmanager
def dropped(*rules: str) -> Iterator[None]:
    """Packets of these kinds are lost without a word: rules as iptables has them, such as "-d 127.0.0.2 --dport 80"."""
    for rule in rules:
        _run("iptables", "-A", "INPUT", "-p", "tcp", *rule.split(), "-j", "DROP")
    try:
        yield
    finally:
        for rule in rules:
            _run("iptables", "-D", "INPUT", "-p", "tcp", *rule.split(), "-j", "DROP")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
