"""Two control planes as processes, each with a pool of its own: a gateway passes requests for the other's models on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from cachefleet_local.fleet.ports import take_ports
from tests.controlplane.gateway.harness import FLEET_KEY, POOL, chat, engine
from tests.controlplane.replicas import Replica, replica
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import POOL_FILE
from tests.fakes.engine import FakeEngine

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
OTHER_POOL = "default/other"
OTHER_MODEL = "other"
_OTHER = POOL_FILE.replace("{name: demo}", "{name: other}").replace("{name: fake,", f"{{name: {OTHER_MODEL},")
POOLS = f"{POOL_FILE}  controlPlane: a\n---{_OTHER}  controlPlane: b\n"

Answer = tuple[int, Mapping[str, str], bytes]


@dataclass
class Planes:
    """Control planes ``a`` (of the model "fake") and ``b`` (of "other"), and their workers."""

    a: Replica
    b: Replica
    workers: tuple[FakeEngine, FakeEngine]
    http: aiohttp.ClientSession

    async def ask(self, plane: Replica, body: dict[str, Any], path: str = CHAT, key: str = "") -> Answer:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with self.http.post(plane.gateway + path, json=body, headers=headers) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.read()

    async def admin(self, plane: Replica, method: str, path: str, body: object = None) -> Any:
        headers = {"authorization": "Bearer for-people"}
        url = f"{plane.internal}/admin/v1{path}"
        async with self.http.request(method, url, json=body, headers=headers) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def metrics(self, plane: Replica) -> list[str]:
        async with self.http.get(f"{plane.internal}/metrics") as answer:
            return (await answer.text()).splitlines()

    async def accounted(self, plane: Replica) -> int:
        """Requests of all tenants, as it accounts for them."""
        told = await self.admin(plane, "GET", "/usage")
        return sum(item["requests"] for item in told["items"])


@asynccontextmanager
async def two_planes(folder: Path, *, second: str = "b", known_as: str = "b", **of_a: Any) -> AsyncIterator[Planes]:
    """``second``: what the second one calls itself; ``known_as``: what each calls the other one, but it ``a``."""
    ports = {name: take_ports({"gateway": 0, "internal": 0}) for name in "ab"}
    url = {name: f"http://127.0.0.1:{taken['gateway']}" for name, taken in ports.items()}
    async with (
        engine() as one,
        engine(model=OTHER_MODEL, api_key=FLEET_KEY.worker_key(OTHER_POOL), inter_token_seconds=0.02) as other,
        aiohttp.ClientSession() as http,
    ):
        listed = {
            POOL: [{"name": "demo-0", "url": one.url, "ready": True}],
            OTHER_POOL: [{"name": "other-0", "url": other.url, "ready": True}],
        }
        (folder / "both.yaml").write_text(POOLS)
        (folder / "both.json").write_text(json.dumps(listed))
        told = {
            "pool_file": folder / "both.yaml",
            "endpoints_file": folder / "both.json",
        }
        of_a["control_planes"] = json.dumps({known_as: url["b"]})
        of_b = {"control_planes": json.dumps({"a": url["a"], known_as: url["a"]})}
        async with (
            replica(folder, "a", {}, ports=ports["a"], control_plane_name="a", **(told | of_a)) as a,
            replica(folder, "b", {}, ports=ports["b"], control_plane_name=second, **(told | of_b)) as b,
        ):
            yield Planes(a, b, (one, other), http)


async def test_a_request_is_answered_by_the_control_plane_that_serves_its_model(tmp_path: Path) -> None:
    async with two_planes(tmp_path) as planes:
        own = await planes.ask(planes.a, chat("x"))
        assert (own[0], own[1]["x-cachefleet-worker"]) == (200, "demo-0")

        status, headers, body = await planes.ask(planes.a, chat("x y z", model=OTHER_MODEL))
        assert (status, headers["x-cachefleet-worker"]) == (200, "other-0")
        assert headers["x-request-id"]
        assert json.loads(body)["usage"]["completion_tokens"] == 4
        [seen] = [request for request in planes.workers[1].requests if request.path == CHAT]
        assert not [request for request in planes.workers[0].requests if b"x y z" in request.body]
        assert b"x y z" in seen.body

        listed: dict[str, Any] = {}
        for plane in (planes.a, planes.b):
            async with planes.http.get(f"{plane.gateway}/v1/models") as answer:
                listed[plane.gateway] = {card["id"]: card for card in (await answer.json())["data"]}
        assert [set(cards) for cards in listed.values()] == [{"fake", "other"}] * 2
        assert listed[planes.a.gateway]["other"]["capabilities"]["control_plane"] == "b"
        async with planes.http.get(f"{planes.a.gateway}/v1/models/other") as answer:
            assert (await answer.json())["id"] == "other"

        dry = json.loads((await planes.ask(planes.a, chat("x", model=OTHER_MODEL), "/v1/route"))[2])
        assert dry["worker"] == "other-0"


async def test_a_stream_is_passed_on_as_it_comes_and_counted_once(tmp_path: Path) -> None:
    async with two_planes(tmp_path) as planes:
        asked = chat("tell me", model=OTHER_MODEL, max_tokens=8, ignore_eos=True, stream=True)
        came, pieces = list[float](), list[bytes]()
        async with planes.http.post(planes.a.gateway + CHAT, json=asked) as answer:
            assert (answer.status, answer.headers["x-cachefleet-worker"]) == (200, "other-0")
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for piece in answer.content.iter_any():
                came.append(time.monotonic())
                pieces.append(piece)
        here = _comparable(b"".join(pieces))
        there = _comparable((await planes.ask(planes.b, asked))[2])
        assert here == there
        assert here[-1] == "[DONE]"
        assert len(pieces) > 3
        assert came[-1] - came[0] > 0.02, "the whole stream came at once"

        while await planes.accounted(planes.b) < 2:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        assert (await planes.accounted(planes.a), await planes.accounted(planes.b)) == (0, 2)
        told = await planes.metrics(planes.a)
        passed = 'cachefleet_passed_requests_total{control_plane="b",outcome="first_event"} 1.0'
        assert passed in told
        assert not [line for line in told if line.startswith("cachefleet_requests_total{")]


async def test_a_client_that_leaves_frees_the_worker_behind_both(tmp_path: Path) -> None:
    async with two_planes(tmp_path) as planes:
        asked = chat("long", model=OTHER_MODEL, max_tokens=2000, ignore_eos=True, stream=True)
        async with planes.http.post(planes.a.gateway + CHAT, json=asked) as answer:
            await answer.content.readany()
            assert planes.workers[1].worker.scheduler.running
            answer.close()
        await until(lambda: not planes.workers[1].worker.scheduler.running)


async def test_a_key_is_judged_once_where_the_model_is_served(tmp_path: Path) -> None:
    """Keys that one control plane alone knows, where each has a database of its own."""
    async with two_planes(tmp_path, api_keys="required") as planes:
        await planes.admin(planes.b, "POST", "/tenants", {"name": "acme", "requests_at_once": 1})
        key = (await planes.admin(planes.b, "POST", "/tenants/acme/keys", {}))["key"]

        assert (await planes.ask(planes.a, chat("x", model=OTHER_MODEL), key=key))[0] == 200
        assert (await planes.ask(planes.a, chat("x"), key=key))[0] == 401, "not admitted here, and of no other's model"
        status, headers, body = await planes.ask(planes.a, chat("x", model=OTHER_MODEL), key="cf-wrong")
        assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
        assert headers["www-authenticate"] == "Bearer"
        assert (await planes.ask(planes.a, chat("x", model="nobodys"), key=key))[0] == 401


async def test_one_that_is_down_is_told_in_the_shape_of_the_api(tmp_path: Path) -> None:
    async with two_planes(tmp_path) as planes:
        planes.b.process.kill()
        await planes.b.process.wait()

        status, headers, body = await planes.ask(planes.a, chat("x", model=OTHER_MODEL))
        error = json.loads(body)["error"]
        assert (status, headers["retry-after"], error["code"]) == (503, "5", "control_plane_unreachable")
        assert error["message"] == "Control plane `b`, which serves model `other`, cannot be reached. Try again in 5 s."
        message = {"model": OTHER_MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}
        status, headers, body = await planes.ask(planes.a, message, MESSAGES)
        assert (status, headers["retry-after"], json.loads(body)["error"]["type"]) == (503, "5", "overloaded_error")

        assert (await planes.ask(planes.a, chat("x")))[0] == 200, "its own models are served all the same"
        async with planes.http.get(f"{planes.a.gateway}/v1/models") as answer:
            assert {card["id"] for card in (await answer.json())["data"]} == {"fake", "other"}


async def test_two_that_disagree_pass_nothing_around(tmp_path: Path) -> None:
    """Each takes the other one for ``b``, and neither is."""
    async with two_planes(tmp_path, second="c") as planes:
        for plane, first, last in ((planes.a, "a", "c"), (planes.b, "c", "a")):
            status, _, body = await planes.ask(plane, chat("x", model=OTHER_MODEL))
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (421, "misdirected_request")
            assert f"Control plane `{first}` has passed this request on to `{last}`, which" in error["message"]
        assert not planes.workers[1].requests


async def test_a_control_plane_that_nobody_knows_is_told(tmp_path: Path) -> None:
    async with two_planes(tmp_path, second="c", known_as="c") as planes:
        status, _, body = await planes.ask(planes.a, chat("x", model=OTHER_MODEL))
        assert (status, json.loads(body)["error"]["code"]) == (421, "misdirected_request")
        async with planes.http.get(f"{planes.a.internal}/readyz") as answer:
            told = await answer.json()
        assert told["control_plane"]["name"] == "a"
        assert "b (default/other)" in told["control_plane"]["problem"]
        found = await planes.admin(planes.a, "GET", "/findings")
        assert "ControlPlaneUnknown" in {one["reason"] for one in found["items"]}


def _comparable(body: bytes) -> list[Any]:
    """The events of a stream, without what differs between two answers."""
    told = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    return [{**json.loads(one), "id": "", "created": 0} if one != b"[DONE]" else "[DONE]" for one in told]
