"""``python3 -m cachefleet_worker.engine_start ARGUMENTS``: vLLM's server with what its container's files hold.

vLLM takes its API key from an argument or a variable, which a container's description has for all to see who may read
that; here the variable is set from the file of the worker key, in this process.

An image of weights that was mounted without a file in it ends the engine with words, which the pool's status has.

Adapters at a revision are fetched first (adapter_weights.py), and where CACHEFLEET_DRAIN_URL says so, the server ends
only once its worker is drained (drain_first.py).

Where the engine serves TLS (CACHEFLEET_TLS_FOLDER), its server takes each handshake's certificate from the files as
they are then. vLLM's own refresh notices one change of a Secret's volume and no second.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cachefleet_core.pool.adapter_options import ADAPTERS_FOLDER, MODEL_FOLDER
from cachefleet_core.tls_names import CERTIFICATE, PRIVATE_KEY
from cachefleet_runtime.tls import follow, settled
from cachefleet_worker.adapter_weights import AdapterError, adapter_folders, with_fetched
from cachefleet_worker.drain_first import SECONDS, URL, drain_first

SERVER: Final = "vllm.entrypoints.openai.api_server"
KEY_FILE: Final = "CACHEFLEET_WORKER_KEY_FILE"
"""Names the file of the worker key, which becomes vLLM's API key; without it the environment's own is left."""


LAST_WORDS: Final = Path("/dev/termination-log")
"""Where the kubelet reads why a container has ended."""


def main(server: str = SERVER) -> None:
    """Prepare the environment and the arguments, then run the server in this process, or in a child where it is to be
    drained before it ends.
    """
    if words := without_weights(sys.argv[1:]):
        with contextlib.suppress(OSError):
            LAST_WORDS.write_text(words)
        sys.exit(words)
    if url := os.environ.get(URL):
        drain_first(url, float(os.environ[SECONDS]))
    if file := os.environ.get(KEY_FILE):
        os.environ["VLLM_API_KEY"] = _key(Path(file))
    if folder := os.environ.get("CACHEFLEET_TLS_FOLDER"):
        renew_certificates(Path(folder))
    try:
        sys.argv[1:] = with_fetched(on_this_machine(sys.argv[1:], both_families=socket.has_dualstack_ipv6()))
    except AdapterError as error:
        sys.exit(str(error))
    runpy.run_module(server, run_name="__main__", alter_sys=True)


def on_this_machine(arguments: list[str], *, both_families: bool) -> list[str]:
    """The arguments with an address to listen on that there is: without IPv6, ``::`` cannot be opened."""
    host = arguments.index("--host") + 1 if "--host" in arguments[:-1] else 0
    if both_families or not host or arguments[host] != "::":
        return arguments
    return [*arguments[:host], "0.0.0.0", *arguments[host + 1 :]]  # noqa: S104  # the pod's own


def without_weights(
    arguments: Sequence[str], folder: Path = Path(MODEL_FOLDER), adapters: Path = Path(ADAPTERS_FOLDER)
) -> str:
    """Why the image of the model or of an adapter cannot be loaded, "" where all can, or where they come from
    elsewhere.

    containerd takes an OCI artifact for an image of no layers, and mounts an empty folder.
    """
    mounted = {folder: "spec.model.source"} if str(folder) in arguments else {}
    for name, path in adapter_folders(arguments).items():
        if path.is_relative_to(adapters):
            mounted[path] = f"the source of adapter {name} in spec.model.adapters"
    return next((_empty_words(path, named) for path, named in mounted.items() if _is_empty(path)), "")


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _empty_words(folder: Path, named: str) -> str:
    return (
        f"{folder} is empty: what {named} names has no files there. containerd mounts images alone, no other OCI "
        "artifacts: build an image of its files"
    )


def _key(file: Path) -> str:
    """The key in a file; without one the process ends, since vLLM would serve everybody."""
    try:
        key = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"{KEY_FILE}: {file} cannot be read, so no engine is started: {error}")
    return key or sys.exit(f"{KEY_FILE}: {file} holds no key, so no engine is started")


def renew_certificates(folder: Path) -> None:
    """Have every TLS server of this process, which uvicorn runs, follow the certificate in ``folder``."""
    import uvicorn.config  # noqa: PLC0415  # vLLM's; only where it is to serve TLS

    made, files = uvicorn.config.create_ssl_context, (folder / CERTIFICATE, folder / PRIVATE_KEY)

    def create(*given: Any, **named: Any) -> ssl.SSLContext:
        _, context = settled(files, lambda: made(*given, **named))
        follow(context, folder)
        return context

    uvicorn.config.create_ssl_context = create


if __name__ == "__main__":
    main()
