"""Reviews asked of a server, and how long their answers hold."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from cachefleet_controlplane.internal_auth.admin_rights import asked
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Asked, Authorization, Reporter
from cachefleet_controlplane.internal_auth.token_review import ReviewBounds, TokenReviewAuthorizer
from cachefleet_controlplane.metrics import Metrics
from tests.controlplane.internal_auth.test_authorizer import HELLO as ANY
from tests.controlplane.pools.kube_server import KubeServer, connected, kube_server
from tests.controlplane.waiting import value

POD, UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
NAME = "demo-workers-1-aaaaa"
HELLO = replace(ANY, worker=NAME)
LIST = Asked("list")


def accepted(
    user: str = "system:serviceaccount:default:worker", pod: str = NAME, audiences: Any = ("cachefleet",)
) -> dict[str, Any]:
    return {
        "authenticated": True,
        "audiences": audiences and list(audiences),
        "user": {
            "username": user,
            "uid": "u1",
            "groups": ["g"],
            "extra": {POD: [pod], UID: [f"uid-{pod}"]} if pod else {},
        },
    }


class Reviewed:
    """An authorizer, the server behind it, and its clock."""

    def __init__(
        self, server: KubeServer, authorizer: TokenReviewAuthorizer, metrics: Metrics, now: list[float]
    ) -> None:
        self.server = server
        self.ask = authorizer
        self.metrics = metrics
        self.now = now

    @property
    def reviews(self) -> int:
        return len(self.server.reviews)


@pytest.fixture(params=[()])
async def reviewed(request: pytest.FixtureRequest) -> AsyncIterator[Reviewed]:
    now = [0.0]
    metrics = Metrics()
    async with kube_server() as server, connected(server) as api:
        bounds = ReviewBounds(size=4, request_seconds=2)
        authorizer = TokenReviewAuthorizer(
            api, metrics=metrics, namespaces=request.param, bounds=bounds, clock=lambda: now[0]
        )
        yield Reviewed(server, authorizer, metrics, now)


async def test_an_agent_speaks_for_its_own_pod_only(reviewed: Reviewed) -> None:
    reviewed.server.tokens = {
        "own": accepted(),
        "neighbour": accepted(pod="demo-workers-1-bbbbb"),
        "elsewhere": accepted(user="system:serviceaccount:other:worker"),
        "unbound": accepted(pod=""),
        "person": accepted(user="kim"),
    }
    answers = {token: await reviewed.ask.reports(token, HELLO) for token in [*reviewed.server.tokens, "none", ""]}
    assert {token for token, allowed in answers.items() if allowed} == {"own"}
    assert reviewed.server.reviews[0]["spec"] == {"token": "own", "audiences": ["cachefleet"]}
    assert value(reviewed.metrics, "auth_checks_total", check="reports", outcome="forbidden") == 4
    assert value(reviewed.metrics, "auth_checks_total", check="reports", outcome="unauthenticated") == 2


async def test_a_reporter_is_its_pod(reviewed: Reviewed) -> None:
    reviewed.server.tokens = {"own": accepted()}
    assert await reviewed.ask.reports("own", HELLO) == Reporter(f"uid-{NAME}")


@pytest.mark.parametrize("name", ["demo-copy", "demo-workers-2-1-aaaaa", "nginx"])
async def test_a_pod_of_another_owner_speaks_for_nobody(reviewed: Reviewed, name: str) -> None:
    reviewed.server.tokens = {"own": accepted(pod=name)}
    assert await reviewed.ask.reports("own", replace(HELLO, worker=name)) is None


@pytest.mark.parametrize("reviewed", [("default",), ()], indirect=True)
async def test_only_a_pod_in_a_namespace_served_is_an_agent(reviewed: Reviewed) -> None:
    """Asked before its Hello, which needs no second review."""
    reviewed.server.tokens = {
        "own": accepted(),
        "elsewhere": accepted(user="system:serviceaccount:other:worker"),
        "unbound": accepted(pod=""),
        "person": accepted(user="kim"),
    }
    answers = {token: await reviewed.ask.agent(token) for token in [*reviewed.server.tokens, "none"]}
    everywhere = not reviewed.ask._namespaces[0]
    assert answers == {
        "own": Authorization.ALLOWED,
        "elsewhere": Authorization.ALLOWED if everywhere else Authorization.FORBIDDEN,
        "unbound": Authorization.FORBIDDEN,
        "person": Authorization.FORBIDDEN,
        "none": Authorization.UNAUTHENTICATED,
    }
    asked = reviewed.reviews
    assert await reviewed.ask.reports("none", HELLO) is None
    assert reviewed.reviews == asked


@pytest.mark.parametrize("audiences", [None, (), ("other",)])
async def test_the_server_must_confirm_our_audience(reviewed: Reviewed, audiences: Any) -> None:
    reviewed.server.tokens = {"t": accepted(audiences=audiences)}
    assert not await reviewed.ask.reports("t", HELLO)
    assert await reviewed.ask.admin("t", LIST) is Authorization.UNAUTHENTICATED


@pytest.mark.parametrize("authenticated", [None, False, "true", 1])
async def test_anything_but_true_is_not_authenticated(reviewed: Reviewed, authenticated: Any) -> None:
    reviewed.server.tokens = {"t": accepted() | {"authenticated": authenticated}}
    assert await reviewed.ask.admin("t", LIST) is Authorization.UNAUTHENTICATED


async def test_who_may_on_pools_may_here(reviewed: Reviewed) -> None:
    reviewed.server.tokens = {"t": accepted(user="kim", pod="")}
    reviewed.server.allowed = {("kim", "get", "serving"), ("kim", "list", "")}
    assert await reviewed.ask.admin("t", Asked("get", "serving", "qwen")) is Authorization.ALLOWED
    assert await reviewed.ask.admin("t", Asked("get", "other", "qwen")) is Authorization.FORBIDDEN
    assert await reviewed.ask.admin("t", LIST) is Authorization.ALLOWED
    assert await reviewed.ask.admin("t", Asked("update")) is Authorization.FORBIDDEN
    assert reviewed.server.reviews[1]["spec"] == {
        "user": "kim",
        "uid": "u1",
        "groups": ["g"],
        "extra": {},
        "resourceAttributes": {
            "group": "cachefleet.io",
            "resource": "prefixcachepools",
            "verb": "get",
            "namespace": "serving",
            "name": "qwen",
        },
    }


async def test_parts_of_pools_and_what_only_roles_name_are_asked_about_as_such(reviewed: Reviewed) -> None:
    reviewed.server.tokens = {"t": accepted(user="kim")}
    await reviewed.ask.admin("t", asked("PUT", "/routing"))
    await reviewed.ask.admin("t", asked("DELETE", "/tenants/acme/keys/k1"))
    told = [review["spec"]["resourceAttributes"] for review in reviewed.server.reviews[1:]]
    common = {"group": "cachefleet.io", "namespace": ""}
    assert told == [
        common | {"resource": "prefixcachepools", "subresource": "routing", "verb": "update"},
        common | {"resource": "tenants", "subresource": "keys", "verb": "delete", "name": "acme"},
    ]


@pytest.mark.parametrize("reviewed", [("one", "two")], indirect=True)
async def test_a_question_of_all_is_asked_in_each_namespace_served(reviewed: Reviewed) -> None:
    reviewed.server.tokens = {"t": accepted(user="kim")}
    reviewed.server.allowed = {("kim", "list", "one")}
    assert await reviewed.ask.admin("t", LIST) is Authorization.FORBIDDEN
    reviewed.now[0] += 31
    reviewed.server.allowed.add(("kim", "list", "two"))
    assert await reviewed.ask.admin("t", LIST) is Authorization.ALLOWED


async def test_answers_are_remembered_for_their_time(reviewed: Reviewed) -> None:
    reviewed.server.tokens = {"t": accepted(user="kim")}
    reviewed.server.allowed = {("kim", "list", "")}

    async def asked_after(seconds: float, token: str, question: Asked) -> int:
        reviewed.now[0] += seconds
        before = reviewed.reviews
        await reviewed.ask.admin(token, question)
        return reviewed.reviews - before

    assert await asked_after(0, "t", LIST) == 2
    assert await asked_after(29, "t", LIST) == 0
    assert await asked_after(2, "t", LIST) == 2
    assert await asked_after(0, "t", Asked("delete")) == 1
    assert await asked_after(9, "t", Asked("delete")) == 0
    assert await asked_after(2, "t", Asked("delete")) == 1
    assert await asked_after(0, "none", LIST) == 1
    assert await asked_after(9, "none", LIST) == 0
    assert await asked_after(2, "none", LIST) == 1


async def test_a_right_that_was_withdrawn_holds_for_half_a_minute_at_most(reviewed: Reviewed) -> None:
    reviewed.server.tokens = {"t": accepted(user="kim")}
    reviewed.server.allowed = {("kim", "update", "serving")}
    question = Asked("update", "serving", "qwen")
    assert await reviewed.ask.admin("t", question) is Authorization.ALLOWED
    reviewed.server.allowed.clear()
    reviewed.now[0] += 30
    assert await reviewed.ask.admin("t", question) is Authorization.FORBIDDEN


async def test_what_is_remembered_is_bounded_and_holds_no_token(reviewed: Reviewed) -> None:
    for number in range(20):
        await reviewed.ask.admin(f"token-{number}", LIST)
    assert len(reviewed.ask._identities) == 4
    assert "token" not in repr(list(reviewed.ask._identities._entries))


async def test_while_the_server_is_away_nobody_new_is_let_in(reviewed: Reviewed) -> None:
    reviewed.server.tokens = {"known": accepted(), "new": accepted()}
    assert await reviewed.ask.reports("known", HELLO)
    reviewed.server.down = 500
    assert await reviewed.ask.reports("known", HELLO)
    with pytest.raises(AccessUnavailableError):
        await reviewed.ask.reports("new", HELLO)
    with pytest.raises(AccessUnavailableError):
        await reviewed.ask.admin("new", LIST)
    reviewed.server.down = 0
    assert await reviewed.ask.reports("new", HELLO)  # a failure is not remembered
    for check in ("reports", "admin"):
        assert value(reviewed.metrics, "auth_checks_total", check=check, outcome="unavailable") == 1


async def test_reviews_at_once_are_bounded(reviewed: Reviewed) -> None:
    real = reviewed.ask._api.post
    running = [0, 0]

    async def post(path: str, body: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.01)
        running[0] -= 1
        return await real(path, body, seconds=seconds)

    reviewed.ask._api.post = post  # type: ignore[method-assign]
    await asyncio.gather(*(reviewed.ask.admin(f"t{n}", LIST) for n in range(40)))
    assert running[1] == 16


async def test_who_was_judged_is_known_right_then_however_long_that_took(reviewed: Reviewed) -> None:
    """An audit entry has a name also where the identity was forgotten while the right was reviewed."""
    reviewed.server.tokens = {"t": accepted(user="kim", pod=""), **{f"t{n}": accepted(pod="") for n in range(9)}}
    reviewed.server.allowed = {("kim", "list", "")}
    slow = itertools.count(step=31)  # each look at the clock is later than an identity lasts
    async with connected(reviewed.server) as api:
        ask = TokenReviewAuthorizer(api, metrics=Metrics(), bounds=ReviewBounds(size=4), clock=lambda: next(slow))
        assert await ask.admin("t", LIST) is Authorization.ALLOWED
        assert ask.user_of("t") == "kim"
        assert await ask.admin("t", Asked("delete")) is Authorization.FORBIDDEN
        assert ask.user_of("t") == "kim"
        assert await ask.admin("unknown", LIST) is Authorization.UNAUTHENTICATED
        assert ask.user_of("unknown") == ""
