from cachefleet_core.pool.model_names import NameConflict, claim_of
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator.controlplane_client.name_claims import NameClaims
from cachefleet_operator.status.pool_assessment import judge
from tests.operator.pools import document

EARLY, LATE = "2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z"


def made(namespace: str, *, model: str = "tiny", created: str = EARLY, first_ready: str = "") -> PrefixCachePool:
    read = document({"model": {"name": model}}, namespace=namespace, creationTimestamp=created)
    found, verdict = judge(read | {"status": {"firstReadyTime": first_ready, "replicas": "of another version"}})
    assert found is not None, verdict
    return found


def test_who_is_told_of_a_change_is_who_it_may_concern() -> None:
    names = NameClaims()
    assert names.put(made("a")) == ()
    assert names.put(made("b", model="else")) == ()
    assert names.put(made("b")) == ("a/demo",)
    assert names.put(made("b")) == (), "nothing changed"
    assert names.put(made("c", model="a/tiny")) == ("a/demo",)
    assert names.put(made("b", first_ready=LATE)) == ("a/demo",)
    assert names.drop("a/demo") == ("b/demo", "c/demo")
    assert names.drop("a/demo") == ()


def test_a_name_moves_from_who_never_served_to_who_does_and_stays() -> None:
    names = NameClaims()
    names.put(made("a", created=EARLY))
    names.put(made("b", created=LATE))
    assert (names.conflict("a/demo"), names.conflict("b/demo")) == (None, NameConflict("a/demo"))
    names.put(made("b", created=LATE, first_ready=EARLY))
    names.put(made("a", created=EARLY, first_ready=LATE))
    assert (names.conflict("a/demo"), names.conflict("b/demo")) == (NameConflict("b/demo"), None)
    names.drop("b/demo")
    assert names.conflict("a/demo") is None
    assert names.conflict("b/demo") is None


def test_rules_hold_here_too() -> None:
    names = NameClaims({"*": ("b",)})
    names.put(made("a"))
    assert names.conflict("a/demo") == NameConflict()


def test_a_pool_that_can_no_longer_be_read_keeps_its_claim() -> None:
    names = NameClaims()
    names.put(made("a", first_ready=EARLY))
    names.put(made("b", first_ready=LATE))
    broken = claim_of(made("a", first_ready=EARLY))
    assert names.put_claim(broken) == ()
    assert names.conflict("b/demo") == NameConflict("a/demo")
    assert names.keys() == {"a/demo", "b/demo"}
