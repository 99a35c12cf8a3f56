"""Which refusals of a Kubernetes API server are worth trying again, and how it is written to."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import RawTestServer, TestServer
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_runtime import kubernetes
from cachefleet_runtime.kubernetes import KubernetesClient, RefusedError, RetryableError, error_of, json_as_yaml
from tests.fakes.secret_volume import authority


@pytest.mark.parametrize("status", [0, 401, 408, 409, 429, 500, 503])
def test_worth_trying_again(status: int) -> None:
    assert isinstance(error_of(status, b""), RetryableError)


@pytest.mark.parametrize("status", [400, 403, 404, 410, 415, 422])
def test_not_worth_trying_again(status: int) -> None:
    assert isinstance(error_of(status, b""), RefusedError)


def test_an_unknown_field_is_refused_for_good_whatever_its_status() -> None:
    message = "failed to create typed patch object (default/x; apps/v1, Kind=Deployment): .spec.x: field not declared"
    assert isinstance(error_of(500, msgspec.json.encode({"message": message})), RefusedError)


def test_a_webhook_that_is_away_is_told_of() -> None:
    message = 'Internal error occurred: failed calling webhook "x.example.org": no endpoints available for service "x"'
    assert isinstance(error_of(500, msgspec.json.encode({"message": message})), RefusedError)


def test_says_what_the_server_said() -> None:
    error = error_of(422, msgspec.json.encode({"reason": "Invalid", "message": "spec.x: no"}))
    assert (error.status, error.reason, error.message) == (422, "Invalid", "spec.x: no")


@pytest.mark.parametrize("text", ["<html>bad gateway</html>", "[]", '"text"', "x" * 100_000])
def test_answers_of_others_are_kept_short(text: str) -> None:
    error = error_of(502, text.encode())
    assert error.reason == "Unknown"
    assert len(error.message) <= 1024


TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [
        "Be kind 😀",
        "\\ud83d",
        "\x00\x1f\x7f\x85\x9f",
        "\u2028\u2029\ufeff\ufffe\uffff",
        "\U0001fffe\U0010ffff",
        "a: b #c\n",
    ]
)


@given(
    st.recursive(
        TEXT | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
    )
)
def test_what_is_applied_means_the_same_as_yaml_and_as_json(value: Any) -> None:
    """The API server reads it as YAML, in which a pair of escaped surrogates is no character."""
    written = json_as_yaml({"value": value})
    assert json.loads(written) == {"value": value}
    assert yaml.load(written, Loader=yaml.CSafeLoader)["value"] == value


async def test_a_token_that_is_refused_is_read_again_from_its_file(tmp_path: Path) -> None:
    token, seen = tmp_path / "token", list[str]()

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({}, status=200 if seen[-1].endswith("good") else 401)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        user = {"name": "u", "user": {"tokenFile": str(token)}}
        cluster = {"name": "c", "cluster": {"server": str(server.make_url("")).rstrip("/")}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        file = tmp_path / "kubeconfig"
        known = {"contexts": [context], "clusters": [cluster], "users": [user], "current-context": "x"}
        token.write_text("bad")
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **known}))
        client = await KubernetesClient.connect(file)
        token.write_text("good")
        try:
            with pytest.raises(RetryableError, match="401"):
                await client.get("/x", {}, seconds=30)
            assert await client.get("/x", {}, seconds=30) == {}
        finally:
            await client.close()
    assert [each.split()[-1] for each in seen] == ["bad", "good"]


async def test_in_a_cluster_no_proxy_of_the_environment_is_between_it_and_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.aio.config import incluster_config  # noqa: PLC0415  # a second

    asked = list[str]()

    async def note(request: web.BaseRequest) -> web.Response:
        asked.append(request.method)
        return web.Response(status=502)

    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_bytes(authority().pem)
    monkeypatch.setattr(kubernetes, "SERVICE_ACCOUNT", tmp_path / "token")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    async with RawTestServer(note) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, str(proxy.make_url("")))
            monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv("NO_PROXY", "")
        client = await KubernetesClient.connect(None)
        try:
            with pytest.raises(RetryableError):
                await client.get("/api", {}, seconds=30)
        finally:
            await client.close()
    assert asked == []
