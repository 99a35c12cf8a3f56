"""Has an engine's server end only once its worker's agent says that it is drained.

The kubelet's SIGTERM comes to this process, and the server is a child of it. That needs nothing of the kubelet but the
signal: a preStop request would have to reach the agent through what a mesh puts before it, which refuses or rewrites
what is not its own TLS. The agent is asked over loopback, which no mesh and no proxy sees.
"""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import threading
from typing import Final
from urllib.parse import urlsplit

URL: Final = "CACHEFLEET_DRAIN_URL"
"""Where the agent drains, which it answers at the drain's end."""
SECONDS: Final = "CACHEFLEET_DRAIN_SECONDS"
"""What the drain may take."""
MARGIN_SECONDS: Final = 5.0
"""A longer silence is that of an agent that hangs."""
_TOLD: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_AWAITED: Final = _TOLD | {signal.SIGCHLD}


def drain_first(url: str, seconds: float) -> None:
    """Return in a child, which is to be the server; this process drains when it is told to end, and exits like it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        return
    os._exit(_watch(child, url, seconds))


def _watch(child: int, url: str, seconds: float) -> int:
    draining: threading.Thread | None = None
    while (status := _ended(child)) is None:
        told = signal.sigwait(_AWAITED)
        if told in _TOLD and draining is None:
            draining = threading.Thread(target=_end, args=(child, told, url, seconds), daemon=True)
            draining.start()
    return status


def _ended(child: int) -> int | None:
    """The exit status of the child, as a shell tells it; None while it runs."""
    pid, status = os.waitpid(child, os.WNOHANG)
    if not pid:
        return None
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _end(child: int, told: int, url: str, seconds: float) -> None:
    try:
        drained(url, seconds + MARGIN_SECONDS)
    except (OSError, http.client.HTTPException) as error:
        print(f"not drained, the engine ends now: {error}", flush=True)  # noqa: T201  # beside vLLM's own lines
    finally:
        os.kill(child, told)


def drained(url: str, seconds: float) -> None:
    """Have the agent drain its worker, and wait until it has. OSError, HTTPException where it does not answer so."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":  # nothing is told or learnt, and its certificate has no name of this host's
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=seconds, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise http.client.HTTPException(f"the agent answered {answer.status} to the request to drain")
    finally:
        connection.close()
