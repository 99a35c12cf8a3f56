import aiohttp

from cachefleet_local.fleet.ports import take_ports
from cachefleet_operator.metrics import Metrics
from cachefleet_operator.probes import application, serving


async def test_probes_and_metrics() -> None:
    problems = {"alive": "", "ready": "waiting"}
    metrics = Metrics("1.2.3")
    metrics.reconciled("done", 0.1)
    metrics.requested("get", "Deployment", 200, 0.01)
    app = application(lambda: problems["alive"], lambda: problems["ready"], metrics)
    async with serving(app, "127.0.0.1", 0) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        assert await _get(client, "/healthz") == (200, "ok")
        assert await _get(client, "/readyz") == (503, "waiting")
        problems["ready"] = ""
        assert await _get(client, "/readyz") == (200, "ok")
        problems["alive"] = "silent"
        assert await _get(client, "/healthz") == (503, "silent")
        assert await _get(client, "/readyz") == (503, "silent")
        text = (await _get(client, "/metrics"))[1]
    assert 'cachefleet_operator_reconciles_total{outcome="done"} 1.0' in text
    assert 'cachefleet_operator_api_request_seconds_count{code="200",kind="Deployment",verb="get"} 1.0' in text
    assert 'version="1.2.3"' in text


async def test_probes_are_answered_at_addresses_of_both_families() -> None:
    app, port = application(lambda: "", lambda: "", Metrics("1")), take_ports({"probes": 0})["probes"]
    async with serving(app, "::", port), aiohttp.ClientSession() as client:
        for host in ("127.0.0.1", "[::1]"):
            async with client.get(f"http://{host}:{port}/healthz") as response:
                assert response.status == 200


async def _get(client: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with client.get(path) as response:
        return response.status, await response.text()
