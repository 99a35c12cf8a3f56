"""A registry of images that asks for a password: what nodes need to pull from one, over plain HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from e2e.node.families import bracketed, chosen

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
EMPTY: Final = "application/vnd.oci.empty.v1+json"
USER: Final = "node"
PASSWORD: Final = "weights"  # of this registry alone, which a test run makes


@dataclass(slots=True)
class Registry:
    """What is pushed into it, by repository and by tag or digest."""

    address: str
    manifests: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def push(self, name: str, tag: str, folder: Path) -> str:
        """Take an image that buildah wrote into a folder; its digest."""
        for path in folder.iterdir():
            self.blobs[f"sha256:{path.name}"] = path.read_bytes()
        return self._named(name, tag, (folder / "manifest.json").read_bytes())

    def push_artifact(self, name: str, tag: str, content: bytes) -> str:
        """Take an artifact as ``oras`` makes it: one file, and no configuration of an image; its digest."""
        layer, empty = (self._blob(content, "application/octet-stream"), self._blob(b"{}", EMPTY))
        about = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": "application/vnd.example.weights"}
        return self._named(name, tag, json.dumps({**about, "config": empty, "layers": [layer]}).encode())

    def pull_secret(self, namespace: str, name: str) -> dict[str, Any]:
        """The Secret with which pods of a namespace may pull."""
        entry = {"username": USER, "password": PASSWORD, "auth": _credential()}
        data = {".dockerconfigjson": json.dumps({"auths": {self.address: entry}})}
        about = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
        return {**about, "type": "kubernetes.io/dockerconfigjson", "stringData": data}

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, type and body of a request."""
        if path == "/v2/":
            return 200, "application/json", b"{}"
        kind, _, name = path.removeprefix("/v2/").rpartition("/")
        found = self.blobs.get(name) if kind.endswith("/blobs") else self.manifests.get(path.removeprefix("/v2/"))
        form = "application/octet-stream" if kind.endswith("/blobs") else MANIFEST
        return (404, "application/json", b"{}") if found is None else (200, form, found)

    def _named(self, name: str, tag: str, manifest: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        self.manifests |= {f"{name}/manifests/{each}": manifest for each in (tag, digest)}
        return digest

    def _blob(self, content: bytes, form: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blobs[digest] = content
        return {"mediaType": form, "digest": digest, "size": len(content)}


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry at this machine's address in the node's network."""
    host = chosen()[0].machine
    server = (_Server6 if ":" in host else ThreadingHTTPServer)((host, 0), _Handler)
    server.registry = Registry(f"{bracketed(host)}:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, name="registry", daemon=True)
    thread.start()
    try:
        yield server.registry  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Basic {_credential()}"
        registry: Registry = self.server.registry  # type: ignore[attr-defined]
        status, form, body = registry.answer(self.path) if known else (401, "application/json", b"{}")
        self.send_response(status)
        if not known:
            self.send_header("WWW-Authenticate", 'Basic realm="weights"')
        if form == MANIFEST:
            self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        self.send_header("Content-Type", form)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  # http.server names it

    def log_message(self, *_: object) -> None:
        """Tests need no line for each."""


def _credential() -> str:
    return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
