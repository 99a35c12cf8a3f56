"""A real S3 server over a folder (versitygw), for tests of object storage."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachefleet_local.fleet.ports import take_ports
from e2e.cluster.binaries import VERSITYGW, UnavailableError, ensured

BUCKET = "files"
_SECONDS = 60


@dataclass(frozen=True)
class S3Server:
    """Its buckets are in ``folder``; the environment is that of its clients."""

    folder: Path
    environment: Mapping[str, str]


@contextmanager
def s3_server(folder: Path, keys: Mapping[str, str]) -> Iterator[S3Server]:
    """A server with one bucket, which ends with the context; ``keys`` are its owner's, as clients read them."""
    try:
        program = ensured([VERSITYGW])[VERSITYGW.name]
    except UnavailableError as error:
        pytest.skip(str(error))
    (folder / BUCKET).mkdir()
    port = take_ports({"s3": 0})["s3"]
    address = ["--port", f"127.0.0.1:{port}", "--region", keys["AWS_REGION"], "--quiet"]
    owner = {"ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"]}
    with subprocess.Popen([program, *address, "posix", folder], env=owner) as process:
        try:
            _await_port(port)
            yield S3Server(folder, {**keys, "AWS_ENDPOINT": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"})
        finally:
            process.terminate()


def _await_port(port: int) -> None:
    ends = time.monotonic() + _SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < ends, "the S3 server does not listen"
            time.sleep(0.05)
        else:
            return
