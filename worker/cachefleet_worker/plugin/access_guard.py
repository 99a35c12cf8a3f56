"""Refuses what comes to vLLM's server without the worker key, whatever the path; vLLM itself asks for a key at some.

The guard is the last thing before vLLM's router, so the path that it judges is the one that is routed. What is open is
named; everything else, known to this vLLM or not, needs the key.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass, field
from typing import Any, Final

from cachefleet_worker.plugin.asgi import CLOSE, App, HttpError, Receive, Scope, Send, error_response
from cachefleet_worker.plugin.plugin_process import NO_WORKER_KEY, Process

FEATURE: Final = "guard"
OPEN_PATHS: Final = frozenset({"/health", "/metrics"})
"""For the kubelet and Prometheus, which have no key."""
_OPEN_METHODS: Final = frozenset({"GET", "HEAD"})
USER_PREFIXES: Final = ("/v1/", "/v2/", "/inference/", "/cohere/")
"""Where vLLM's own API keys, which may be others than the worker key, are asked for by vLLM, and open."""
OWNER_PATHS: Final = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Of these, what loads files of any path, for everybody: the worker key alone opens them."""
PASSED: Final = "cachefleet.guard"
"""Set in the scope of what the guard let through."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that open this server: the worker key everything, users' keys the API alone."""

    worker: bytes = field(repr=False)
    users: tuple[bytes, ...] = field(default=(), repr=False)

    def open(self, path: str, given: list[bytes]) -> bool:
        """Whether one of the given keys opens a path."""
        users = self.users if path.startswith(USER_PREFIXES) and path not in OWNER_PATHS else ()
        return any(key and hmac.compare_digest(one, key) for key in (self.worker, *users) for one in given)


class AccessGuard:
    """ASGI middleware: 401, or the end of a WebSocket, without a key that opens the path."""

    def __init__(self, app: App, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and not self._lets_in(scope):
            await _refuse(scope, send)
            return
        scope[PASSED] = True
        await self._app(scope, receive, send)

    def _lets_in(self, scope: Scope) -> bool:
        path = routed_path(scope)
        if scope["type"] == "http" and scope["method"] in _OPEN_METHODS and path in OPEN_PATHS:
            return True
        return self._keys.open(path, given_keys(scope))


def install(app: Any, process: Process) -> None:
    """Put the guard before the routes of vLLM's application, where a worker key is configured."""
    if off := process.settings.switched_off(FEATURE):
        process.faults.off(FEATURE, off)
    elif process.settings.worker_key_file is None:
        process.faults.off(FEATURE, NO_WORKER_KEY)
    else:
        # Added before vLLM's own, so inside of them.
        app.add_middleware(AccessGuard, keys=Keys(process.worker_key(), user_keys(app)))
        process.capabilities.add(FEATURE, "on")


def check_passed(scope: Scope, process: Process) -> None:
    """Say that the guard is off where a request has come past it: this vLLM builds its server otherwise."""
    if process.capabilities.mode(FEATURE) == "on" and PASSED not in scope:
        process.faults.off(FEATURE, "requests come past it in this vLLM")


def user_keys(app: Any) -> tuple[bytes, ...]:
    """API keys of vLLM itself: those of its arguments, else of its environment."""
    named = getattr(getattr(app.state, "args", None), "api_key", None) or os.environ.get("VLLM_API_KEY", "")
    return tuple(key.encode() for key in ([named] if isinstance(named, str) else named) if key)


def routed_path(scope: Scope) -> str:
    """The path as Starlette's router sees it: below the server's root path, where it begins with that."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if below.startswith("/") or not below else path


def given_keys(scope: Scope) -> list[bytes]:
    """The keys that a request bears."""
    headers = dict(scope["headers"])
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    given = [headers.get(b"x-cachefleet-token", b""), bearer.strip() if scheme.lower() == b"bearer" else b""]
    return [key for key in given if key]


def trusted_header(scope: Scope, name: bytes, key: bytes) -> bytes:
    """The value of a header, where the request bears this key; b"" otherwise."""
    given: bytes = next((value for each, value in scope["headers"] if each == name), b"")
    return given if given and key and any(hmac.compare_digest(each, key) for each in given_keys(scope)) else b""


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    challenge = ((b"www-authenticate", b"Bearer"), *CLOSE)
    error = HttpError(401, "no_worker_key", "this needs the worker key as Authorization: Bearer KEY", challenge)
    await error_response(error).send(send)
