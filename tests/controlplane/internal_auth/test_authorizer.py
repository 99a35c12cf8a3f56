"""Questions, tokens and what is remembered of them."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from cachefleet_controlplane.internal_auth.admin_rights import asked
from cachefleet_controlplane.internal_auth.authorizer import MAX_TOKEN, Asked, Authorization, Reporter, bearer
from cachefleet_controlplane.internal_auth.file_tokens import FileAuthorizer, TokenFile
from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import Hello
from cachefleet_core.tenancy import FleetKey
from cachefleet_runtime.expiring_cache import Expiring
from tests.controlplane.waiting import value

KEY = FleetKey(bytes(range(32)))
HELLO = Hello(
    worker="demo-0",
    pool="default/demo",
    epoch="e",
    endpoint="http://x",
    contract=IndexContract(weights="w", tokenizer="t", block_size=16),
)


@pytest.mark.parametrize(
    ("method", "path", "question"),
    [
        ("GET", "/pools", Asked("list")),
        ("HEAD", "/", Asked("list")),
        ("GET", "/pools/a/b", Asked("get", "a", "b")),
        ("GET", "/pools/a/b/", Asked("get", "a", "b")),
        ("POST", "/pools/a/b/warm", Asked("update", "a", "b")),
        ("DELETE", "/pools/a/b", Asked("delete", "a", "b")),
        ("GET", "/workers", Asked("list")),
        ("GET", "/findings", Asked("list")),
        ("POST", "/certify", Asked("update")),
        ("GET", "/routing", Asked("get", resource="prefixcachepools/routing")),
        ("PUT", "/routing", Asked("update", resource="prefixcachepools/routing")),
        ("POST", "/flush", Asked("create", resource="prefixcachepools/flush")),
        ("GET", "/decisions", Asked("list", resource="decisions")),
        ("GET", "/decisions/d1", Asked("get", resource="decisions")),
        ("GET", "/decisions/stream", Asked("watch", resource="decisions")),
        ("GET", "/decisions/export", Asked("list", resource="decisions")),
        ("POST", "/explain", Asked("list", resource="decisions")),
        ("POST", "/tenants", Asked("create", resource="tenants")),
        ("PATCH", "/tenants/acme", Asked("update", name="acme", resource="tenants")),
        ("DELETE", "/tenants/acme", Asked("delete", name="acme", resource="tenants")),
        ("GET", "/tenants/acme/keys", Asked("get", name="acme", resource="tenants/keys")),
        ("POST", "/tenants/acme/keys", Asked("create", name="acme", resource="tenants/keys")),
        ("POST", "/tenants/acme/keys/rotate", Asked("update", name="acme", resource="tenants/keys")),
        ("DELETE", "/tenants/acme/keys/k", Asked("delete", name="acme", resource="tenants/keys")),
        ("DELETE", "/tenants/acme/keys", Asked("delete")),
        ("POST", "/access/open", Asked("update", resource="tenants")),
        ("GET", "/usage", Asked("list", resource="tenants")),
        ("GET", "/audit", Asked("list", resource="auditentries")),
        ("PUT", "/decisions", Asked("update")),
        ("DELETE", "/tenants//keys/k", Asked("delete", resource="tenants/keys")),
        ("DELETE", "/anything", Asked("delete")),
    ],
)
def test_a_request_becomes_a_question(method: str, path: str, question: Asked) -> None:
    assert asked(method, path) == question


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Bearer a b", ""),
        ("Bearer \x00", ""),
        ("Bearer \u00fc", ""),
        ("Token abc", ""),
        ("", ""),
        ("Bearer " + "x" * (MAX_TOKEN + 1), ""),
    ],
)
def test_only_a_sound_bearer_token_is_taken(header: str, token: str) -> None:
    assert bearer(header) == token


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    file = TokenFile(path)
    assert not file.matches("one")
    path.write_text(" one\n")
    assert file.matches("one")
    assert not file.matches("two")
    new = tmp_path / "new"
    new.write_text("two")
    new.replace(path)
    assert file.matches("two")
    assert not file.matches("one")
    path.unlink()
    assert not file.matches("two")


@pytest.mark.parametrize("content", ["", "\n", "   "])
def test_an_empty_token_file_lets_nobody_in(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    assert not TokenFile(tmp_path / "token").matches("")


def test_a_file_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    file = TokenFile(path)
    assert file.matches("one")
    path.unlink()
    path.mkdir()
    os.utime(path)
    assert not file.matches("one")


async def test_a_worker_s_token_is_good_for_that_worker_alone(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("a")
    metrics = Metrics()
    authorizer = FileAuthorizer(KEY, tmp_path / "admin", metrics=metrics)
    token = KEY.report_token("default/demo", "demo-0")
    other = FleetKey(bytes(32)).report_token("default/demo", "demo-0")
    assert [await authorizer.reports(given, HELLO) for given in (token, other, "a", "")] == [
        Reporter(),
        None,
        None,
        None,
    ]
    for changed in (replace(HELLO, worker="demo-1"), replace(HELLO, pool="other/demo")):
        assert not await authorizer.reports(token, changed)
    assert [await authorizer.agent(given) is Authorization.ALLOWED for given in (token, other, "a")] == [
        True,
        False,
        False,
    ]
    assert await authorizer.admin(token, Asked("list")) is Authorization.UNAUTHENTICATED
    assert value(metrics, "auth_checks_total", check="reports", outcome="unauthenticated") == 5


async def test_each_file_opens_its_own_door(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("r")
    (tmp_path / "admin").write_text("a")
    metrics = Metrics()
    authorizer = FileAuthorizer(KEY, tmp_path / "admin", metrics=metrics, reports_file=tmp_path / "reports")
    assert [await authorizer.reports(token, HELLO) for token in ("r", "a", "")] == [Reporter(), None, None]
    assert [await authorizer.agent(token) is Authorization.ALLOWED for token in ("r", "a", "")] == [True, False, False]
    answers = [await authorizer.admin(token, Asked("list")) for token in ("r", "a", "")]
    assert answers == [Authorization.UNAUTHENTICATED, Authorization.ALLOWED, Authorization.UNAUTHENTICATED]
    assert value(metrics, "auth_checks_total", check="admin", outcome="unauthenticated") == 2


def test_answers_expire_and_the_least_used_goes_first() -> None:
    now = [0.0]
    cache = Expiring[str, int](2, lambda: now[0])
    cache.put("a", 1, seconds=10)
    cache.put("b", 2, seconds=5)
    assert cache.get("a") == 1
    cache.put("c", 3, seconds=10)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    now[0] = 10.0
    assert (cache.get("a"), cache.get("c"), len(cache)) == (None, None, 0)
