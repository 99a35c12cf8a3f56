"""A fake of ``external.metrics.k8s.io`` behind a real API server: what an adapter would answer, as a test says it.

It stands in for prometheus-adapter, whose Go module the proxy does not serve. The API server's aggregator finds it by
an APIService, as any adapter, and kube-controller-manager asks it for the metrics of HorizontalPodAutoscalers.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from e2e.cluster.api_server import ApiServer
from e2e.cluster.kube import Kube, Object, until

GROUP: Final = "external.metrics.k8s.io"
VERSION: Final = "v1beta1"
SERVICE: Final = "external-metrics"
NAME: Final = f"{VERSION}.{GROUP}"
ROOT: Final = f"/apis/{GROUP}/{VERSION}"


def host(namespace: str) -> str:
    """The name that the API server expects in the certificate of who answers."""
    return f"{SERVICE}.{namespace}.svc"


@contextmanager
def registered(kube: Kube, namespace: str, port: int, ca: Path) -> Iterator[None]:
    """Within the block the API server asks ``localhost:port`` for external metrics.

    By a Service that is another name for localhost: nothing routes to a cluster's addresses here.
    """
    service: Object = {"name": SERVICE, "namespace": namespace}
    spec: Object = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    kube.create({"apiVersion": "v1", "kind": "Service", "metadata": service, "spec": spec})
    kube.create(_api_service(service | {"port": port}, ca))
    until(lambda: _available(kube.read("APIService", "", NAME)))
    yield
    kube.delete("APIService", "", NAME)


def _api_service(service: Object, ca: Path) -> Object:
    spec: Object = {
        "group": GROUP,
        "version": VERSION,
        "service": service,
        "caBundle": base64.b64encode(ca.read_bytes()).decode(),
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    kind = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
    return kind | {"metadata": {"name": NAME}, "spec": spec}


def _available(service: Object) -> bool:
    found = {one["type"]: one for one in service.get("status", {}).get("conditions", ())}
    assert found.get("Available", {}).get("status") == "True", found
    return True


class ExternalMetrics:
    """Use as a context manager. ``values`` maps (namespace, pool, metric) to a number; what it lacks is not found."""

    def __init__(self, cluster: ApiServer, namespace: str) -> None:
        self.values: dict[tuple[str, str, str], float] = {}
        self.asked: set[tuple[str, str, str]] = set()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # the library names it
                fake._answer(self)

            def log_message(self, *_: Any) -> None:
                """Silence."""

        pair = cluster.server_pair(SERVICE, (host(namespace),))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        status, document = self._found(request.path)
        body = json.dumps(document).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        with suppress(OSError):  # who asked may have left
            request.end_headers()
            request.wfile.write(body)

    def _found(self, target: str) -> tuple[int, Object]:
        asked = urlsplit(target)
        match asked.path.removeprefix(ROOT).strip("/").split("/"):
            case [""] if asked.path.rstrip("/") == ROOT:
                return 200, self._resources()
            case ["namespaces", namespace, metric]:
                [selector] = parse_qs(asked.query).get("labelSelector", [""])
                return self._metric(namespace, selector.removeprefix("pool="), metric)
        return 404, _failure(404, "NotFound", f"no {asked.path}")

    def _metric(self, *key: str) -> tuple[int, Object]:
        self.asked.add((key[0], key[1], key[2]))
        value = self.values.get((key[0], key[1], key[2]))
        if value is None:
            return 404, _failure(404, "NotFound", f"no metric {key[2]} of {key[0]}/{key[1]}")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        item = {"metricName": key[2], "metricLabels": {}, "timestamp": now, "value": f"{round(value * 1000)}m"}
        kind = {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        return 200, kind | {"items": [item]}

    def _resources(self) -> Object:
        metric = {"singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        names = sorted({name for _, _, name in self.values})
        kind = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
        return kind | {"resources": [metric | {"name": name} for name in names]}


def _failure(code: int, reason: str, message: str) -> Object:
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return kind | {"code": code, "reason": reason, "message": message}
