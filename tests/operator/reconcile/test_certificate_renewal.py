"""What the operator writes of certificates, and what it leaves alone."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from cachefleet_core.tls_names import AUTHORITIES, CERTIFICATE, PRIVATE_KEY, worker_server_name
from cachefleet_operator.certificates.certificate import CertificateError
from cachefleet_operator.certificates.certificate_secrets import contents, read_authorities, read_serving
from cachefleet_operator.certificates.trust import Trust
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.metrics import Metrics
from cachefleet_operator.reconcile.apply import Applier
from cachefleet_operator.reconcile.certificate_renewal import (
    Certificates,
    certificates,
)
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.settings import Settings
from cachefleet_runtime.kubernetes import Object, RefusedError
from tests.operator.pools import document
from tests.operator.store import Store

DAY = dt.timedelta(days=1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KEY = PoolKey("serving/demo")
POOL = Ref("PrefixCachePool", "serving", "demo")
AUTHORITY = Ref("Secret", "ops", "cachefleet-ca")
BUNDLE = Ref("ConfigMap", "ops", "cachefleet-ca")
PLANE = Ref("Secret", "ops", "cachefleet-controlplane-tls")
WORKERS = Ref("Secret", "serving", "demo-worker-tls")


def settings(**changes: Any) -> Settings:
    return Settings(agent_image="example.org/agent:1", operator_namespace="ops", **({"tls": "issued"} | changes))


class Operator:
    """One term of leadership over objects in memory, with a clock that the test moves."""

    def __init__(self, store: Store, chosen: Settings | None = None, *, now: dt.datetime = START) -> None:
        self.store, self.now, self.metrics, self.trust = store, now, Metrics("0"), Trust()
        chosen, applier = chosen or settings(), Applier(store, lambda: True)
        made = certificates(store, applier, chosen, self.trust, today=lambda: self.now, expiries=self.metrics)
        assert made is not None
        self.certificates: Certificates = made
        self._reconciler = Reconciler(store, applier, chosen, today=lambda: self.now, certificates=made)

    async def pass_over(self) -> Outcome:
        await self.certificates.renew()
        return await self._reconciler.reconcile(KEY)

    async def reconcile(self) -> Outcome:
        return await self._reconciler.reconcile(KEY)

    def ends(self, ref: Ref) -> dt.datetime | None:
        """When a certificate ends by the gauge that alerts look at."""
        name = "cachefleet_operator_certificate_expiry_timestamp_seconds"
        labels = {"namespace": ref.namespace, "secret": ref.name}
        found = self.metrics.registry.get_sample_value(name, labels)
        return None if found is None else dt.datetime.fromtimestamp(found, dt.UTC)

    def condition(self) -> Object:
        found = self.store.objects[POOL]["status"]["conditions"]
        return next(each for each in found if each["type"] == "ConfigValid")


def refusing(verb: str, kind: str) -> Callable[[str, Ref], None]:
    """For ``Store.before``: such requests are refused."""

    def before(asked: str, ref: Ref) -> None:
        if (asked, ref.kind) == (verb, kind):
            raise RefusedError(403, "Forbidden", f"{verb} {ref} is forbidden")

    return before


async def test_a_control_plane_and_a_pool_get_what_they_mount() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    objects = operator.store.objects
    trusted = objects[BUNDLE]["data"][AUTHORITIES].encode()
    for ref in (PLANE, WORKERS):
        data = contents(objects[ref])
        assert data.keys() == {CERTIFICATE, PRIVATE_KEY, AUTHORITIES}
        assert data[AUTHORITIES] == trusted
    assert objects[WORKERS]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    volumes = objects[Ref("Deployment", "serving", "demo-workers")]["spec"]["template"]["spec"]["volumes"]
    assert next(each for each in volumes if each["name"] == "tls")["secret"]["secretName"] == WORKERS.name
    pair = read_serving(objects[WORKERS])
    assert pair is not None
    assert worker_server_name("serving/demo") in pair.certificate.names


async def test_the_key_of_the_authority_stays_where_it_is() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    key = operator.store.objects[AUTHORITY]["data"]["current.key"]
    holders = [ref for ref, each in operator.store.objects.items() if key in str(each)]
    assert holders == [AUTHORITY]


async def test_what_is_valid_is_not_written_again() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    operator.store.settle()
    await operator.pass_over()
    operator.store.writes.clear()
    operator.now += 59 * DAY
    assert await Operator(operator.store, now=operator.now).pass_over() is Outcome.DONE
    assert [ref for _, ref in operator.store.writes if ref.kind in {"Secret", "ConfigMap"}] == []


async def test_renewal_rolls_no_pod() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    before = operator.store.objects[WORKERS]["data"]
    operator.store.settle()
    await operator.pass_over()
    operator.store.writes.clear()
    operator.now += 61 * DAY
    await operator.pass_over()
    assert operator.store.objects[WORKERS]["data"] != before
    written = [(verb, ref) for verb, ref in operator.store.writes if ref.kind not in {"Event", "PrefixCachePool"}]
    assert written == [("update", PLANE), ("update", WORKERS)]
    assert operator.store.objects[WORKERS]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


async def test_a_certificate_that_is_lost_is_made_again() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    del operator.store.objects[WORKERS], operator.store.objects[PLANE]
    await operator.pass_over()
    assert {WORKERS, PLANE} <= operator.store.objects.keys()


async def test_a_certificate_that_is_lost_while_an_edit_is_refused_is_made_again() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    operator.store.objects[POOL]["metadata"]["generation"] += 1
    operator.store.objects[POOL]["spec"]["role"] = "Nonsense"
    del operator.store.objects[WORKERS]
    await operator.pass_over()
    assert operator.condition()["reason"] == "Invalid"
    assert read_serving(operator.store.objects[WORKERS]) is not None


async def test_a_new_authority_is_trusted_before_it_signs() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    operator.now += 1461 * DAY
    await operator.pass_over()
    first, second = (read_serving(operator.store.objects[ref]) for ref in (PLANE, WORKERS))
    bundle = contents(operator.store.objects[WORKERS])[AUTHORITIES]
    assert bundle.count(b"BEGIN") == 2
    operator.now += dt.timedelta(hours=1)
    await operator.pass_over()
    for ref, before in ((PLANE, first), (WORKERS, second)):
        after = read_serving(operator.store.objects[ref])
        assert after is not None
        assert before is not None
        assert after.certificate.issuer != before.certificate.issuer
    assert contents(operator.store.objects[WORKERS])[AUTHORITIES].count(b"BEGIN") == 2
    operator.now = START + 1826 * DAY
    await operator.pass_over()
    assert contents(operator.store.objects[WORKERS])[AUTHORITIES].count(b"BEGIN") == 1


@pytest.mark.parametrize("data", [{}, None, {"current.crt": "!", "current.key": "eA=="}])
async def test_a_broken_authority_is_never_replaced(data: Any) -> None:
    secret = {**AUTHORITY.manifest(), "data": data}
    operator = Operator(Store(document(), secret))
    with pytest.raises(CertificateError, match="Secret ops/cachefleet-ca"):
        await operator.pass_over()
    await operator.reconcile()
    assert operator.store.objects[AUTHORITY]["data"] == data
    assert operator.condition()["reason"] == "CertificatesBroken"
    assert "cachefleet-ca" in operator.condition()["message"]


async def test_pools_that_have_a_certificate_go_on_without_the_authority() -> None:
    store = Store(document())
    await Operator(store).pass_over()
    store.objects[AUTHORITY]["data"] = {}
    after = Operator(store)
    with pytest.raises(CertificateError):
        await after.pass_over()
    await after.reconcile()
    assert after.condition()["status"] == "True"


async def test_a_secret_of_somebody_else_is_left_alone() -> None:
    theirs: Object = {**WORKERS.manifest(), "data": {CERTIFICATE: "eA=="}}
    operator = Operator(Store(document(), theirs))
    await operator.pass_over()
    assert operator.store.objects[WORKERS]["data"] == theirs["data"]
    assert operator.condition()["reason"] == "NameTaken"
    other = Operator(Store({**PLANE.manifest(), "data": {}}))
    with pytest.raises(CertificateError, match=r"cachefleet-controlplane-tls exists and is not the operator's"):
        await other.certificates.renew()


async def test_existing_secrets_are_mounted_and_not_written() -> None:
    issuer = Operator(Store(document()))
    await issuer.pass_over()
    given = {**PLANE.manifest(), "data": issuer.store.objects[PLANE]["data"]}
    store = Store(document(), given)
    operator = Operator(store, settings(tls="existing", tls_worker_secret="theirs"))
    assert operator.trust.context() is True
    await operator.pass_over()
    assert operator.trust.context() is not True
    assert [ref for _, ref in store.writes if ref.kind == "Secret" and "tls" in ref.name] == []
    volumes = store.objects[Ref("Deployment", "serving", "demo-workers")]["spec"]["template"]["spec"]["volumes"]
    assert next(each for each in volumes if each["name"] == "tls")["secret"]["secretName"] == "theirs"


@pytest.mark.parametrize("data", [None, {}, {AUTHORITIES: base64.b64encode(b"x").decode()}])
async def test_an_existing_secret_without_an_authority_is_named(data: Any) -> None:
    store = Store(*([] if data is None else [{**PLANE.manifest(), "data": data}]))
    operator = Operator(store, settings(tls="existing"))
    with pytest.raises(CertificateError, match="Secret ops/cachefleet-controlplane-tls"):
        await operator.certificates.renew()


async def test_when_certificates_end_is_measured() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    assert operator.ends(PLANE) == START + 90 * DAY
    assert operator.ends(AUTHORITY) == START + 1825 * DAY
    await operator.pass_over()
    assert operator.ends(WORKERS) == START + 90 * DAY
    operator.metrics.forget("serving", "demo")
    assert operator.ends(WORKERS) is None


async def test_a_certificate_that_cannot_be_written_is_seen_to_end() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    operator.now += 70 * DAY
    operator.store.before = refusing("update", "Secret")
    for _ in range(2):
        with pytest.raises(RefusedError):
            await operator.certificates.renew()
        assert await operator.reconcile() is Outcome.REFUSED
    assert [operator.ends(ref) for ref in (PLANE, WORKERS)] == [START + 90 * DAY] * 2
    operator.store.before = lambda _verb, _ref: None
    await operator.pass_over()
    await operator.pass_over()
    assert [operator.ends(ref) for ref in (PLANE, WORKERS)] == [START + 160 * DAY] * 2


async def test_a_certificate_is_seen_to_end_without_the_authority() -> None:
    store = Store(document())
    await Operator(store).pass_over()
    store.objects[AUTHORITY]["data"] = {}
    after = Operator(store)
    with pytest.raises(CertificateError):
        await after.pass_over()
    await after.reconcile()
    assert [after.ends(ref) for ref in (PLANE, WORKERS)] == [START + 90 * DAY] * 2


async def test_a_new_authority_is_measured_when_it_is_written() -> None:
    operator = Operator(Store())
    await operator.certificates.renew()
    operator.now += 1826 * DAY
    operator.store.before = refusing("update", "Secret")
    with pytest.raises(RefusedError):
        await operator.certificates.renew()
    assert operator.ends(AUTHORITY) == START + 1825 * DAY
    operator.store.before = lambda _verb, _ref: None
    await operator.certificates.renew()
    assert operator.ends(AUTHORITY) == START + (1825 + 1826) * DAY


async def test_what_people_are_told_keeps_no_certificate_back() -> None:
    operator = Operator(Store())
    operator.store.before = refusing("patch", "ConfigMap")
    with pytest.raises(RefusedError):
        await operator.certificates.renew()
    assert PLANE in operator.store.objects


@pytest.mark.parametrize("host", ["[fd00:0:0::1]", "[FD00::0001]", "[fd00::1%25eth0]"])
async def test_an_address_that_can_be_written_in_many_ways_is_one_name(host: str) -> None:
    operator = Operator(Store(), settings(control_plane="plane:8081", admin_url=f"https://{host}:8081"))
    await operator.certificates.renew()
    operator.store.writes.clear()
    await operator.certificates.renew()
    assert operator.store.writes == []


async def test_certificates_from_the_future_are_made_anew() -> None:
    """As where the operator's clock was ahead when it issued them."""
    store = Store(document())
    await Operator(store, now=START + 365 * DAY).pass_over()
    operator = Operator(store)
    await operator.pass_over()
    signing = read_authorities(store.objects[AUTHORITY]).current.certificate
    assert signing.begins < START
    for ref in (PLANE, WORKERS):
        pair = read_serving(store.objects[ref])
        assert pair is not None
        assert pair.certificate.begins < START < pair.certificate.ends
        assert pair.certificate.issuer == signing.key
        assert contents(store.objects[ref])[AUTHORITIES].count(b"BEGIN") == 2


BROKEN = [
    lambda store: store.objects[POOL]["spec"].update(podTemplate={"bogus": 1}),
    lambda store: store.objects[POOL]["spec"].update(replicas="many"),
    lambda store: store.objects[POOL]["spec"]["prefixCache"].update(budgetMiB=10**6),
    lambda store: store.objects[POOL]["spec"]["model"].update(
        chatTemplate={"configMapKeyRef": {"name": "gone", "key": "x"}}
    ),
    lambda store: (
        store.objects.pop(Ref("Secret", "serving", "demo-worker-keys")),
        store.objects[Ref("Secret", "ops", "cachefleet-fleet-key")].update(data={}),
    ),
    lambda store: store.objects.update(
        {(ref := Ref("Service", "serving", "demo-workers")): {**ref.manifest(), "spec": {}}}
    ),
]
WHY = ["pod template", "spec", "budget", "chat template", "fleet key", "name"]


@pytest.mark.parametrize("break_it", BROKEN, ids=WHY)
async def test_a_pool_that_is_not_admitted_keeps_a_valid_certificate(break_it: Callable[[Store], object]) -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    break_it(operator.store)
    for days in (70, 80, 91, 160):
        operator.now = START + days * DAY
        await operator.pass_over()
        pair = read_serving(operator.store.objects[WORKERS])
        assert pair is not None
        assert pair.certificate.ends > operator.now
    operator.now = START + 1461 * DAY
    await operator.pass_over()
    assert contents(operator.store.objects[WORKERS])[AUTHORITIES].count(b"BEGIN") == 2


async def test_a_refused_secret_of_keys_keeps_no_certificate_from_renewal() -> None:
    operator = Operator(Store(document()))
    await operator.pass_over()
    del operator.store.objects[Ref("Secret", "serving", "demo-worker-keys")]
    operator.store.before = refusing("create", "Secret")
    operator.now += 70 * DAY
    assert await operator.pass_over() is Outcome.REFUSED
    pair = read_serving(operator.store.objects[WORKERS])
    assert pair is not None
    assert pair.certificate.ends == START + 160 * DAY


async def test_a_secret_of_keys_that_cannot_be_put_right_keeps_no_certificate_from_renewal() -> None:
    """It was made immutable, for instance."""
    operator = Operator(Store(document()))
    await operator.pass_over()
    keys, before = Ref("Secret", "serving", "demo-worker-keys"), contents(operator.store.objects[WORKERS])
    operator.store.objects[keys]["data"]["worker.key"] = "b3RoZXI="

    def refuse(verb: str, ref: Ref) -> None:
        if (verb, ref) == ("update", keys):
            raise RefusedError(422, "Invalid", "field is immutable when `immutable` is set")

    operator.store.before = refuse
    operator.now += 61 * DAY
    assert await operator.pass_over() is Outcome.REFUSED
    assert contents(operator.store.objects[WORKERS]) != before


async def test_an_invalid_pool_takes_no_secret_of_somebody_else() -> None:
    theirs: Object = {**WORKERS.manifest(), "data": {CERTIFICATE: "eA=="}}
    operator = Operator(Store(document({"podTemplate": {"bogus": 1}}), theirs))
    await operator.pass_over()
    assert operator.store.objects[WORKERS] == theirs
    assert operator.condition()["reason"] == "InvalidPodTemplate"
