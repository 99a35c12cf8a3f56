"""A fake of the admin API's one route that the operator asks: what a test says is known of each pool."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Object = dict[str, Any]


class FakeControlPlane:
    """Use as a context manager. ``pools`` maps "namespace/name" to an answer; ``tokens`` collects what was shown."""

    def __init__(self) -> None:
        self.pools: dict[str, Object] = {}
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.failing = False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the library names it
                fake._answer(self)

            def log_message(self, *_: Any) -> None:
                """Silence."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def knows(self, key: str, *members: Object, block_size: int = 16, ratio: float | None = None, **more: Any) -> None:
        """Say what is known of a pool."""
        contract = {
            "fingerprint": f"sha256:{block_size}",
            "weights": "org/tiny",
            "revision": "",
            "tokenizer": "t",
            "blockSize": block_size,
            "keyVersion": 1,
        }
        count = len(members)
        self.pools[key] = {
            "key": key,
            "contract": contract if members else None,
            "hitRatio": {"value": ratio, "windowSeconds": 600, "objective": None, "queriedTokens": 9, "hitTokens": 3},
            "workers": {"total": count, "ready": count, "fresh": count, "excluded": 0},
            "members": list(members),
            **more,
        }

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self.tokens.add(request.headers.get("Authorization", ""))
        key = request.path.removeprefix("/admin/v1/pools/")
        self.asked.append(key)
        known = self.pools.get(key)
        status = 503 if self.failing else 404 if known is None else 200
        body = json.dumps(known if status == 200 else {"status": status}).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


def member(name: str, *, value: float = 1.0, phase: str = "ready", **more: Any) -> Object:
    """One worker as the admin API shows it, as far as the operator reads it."""
    return {
        "name": name,
        "rank": 0,
        "phase": phase,
        "phaseReason": None,
        "ready": True,
        "stream": "live",
        "stale": False,
        "indexed": True,
        "epoch": f"epoch-{name}",
        "warmth": {"done": 1, "total": 1, "failed": []},
        "heldBlocks": 40,
        "blockBytes": 1 << 20,
        "cacheValue": value,
        "excluded": False,
        "differences": [],
        "load": {"blocksIdle": 30},
        **more,
    }
