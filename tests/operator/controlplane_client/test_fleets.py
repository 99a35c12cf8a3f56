from typing import Any

import pytest

from cachefleet_core.fleet_status.pool_facts import ContractFacts
from cachefleet_operator.controlplane_client.fleets import Declared, Fleets, declared, disagreement
from tests.operator.pools import pool

MINE = Declared("serving/a", "serving", "tiny", "org/tiny", "", 16)


def other(**changes: Any) -> Declared:
    given = {"key": "serving/b", "namespace": "serving", "model": "tiny", "source": "org/tiny", "revision": "r1"}
    return Declared(**{**given, "block_size": 16, **changes})


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (other(), ""),
        (other(block_size=32), "pool b serves model tiny too, with engine.blockSize 32; here it is 16"),
        (other(source="org/else"), "pool b serves model tiny too, with model.source org/else; here it is org/tiny"),
    ],
)
def test_what_pools_declare(theirs: Declared, words: str) -> None:
    assert disagreement(MINE, [(theirs, None)], None) == words


def test_revisions_differ_where_both_name_one() -> None:
    assert "model.revision r2" in disagreement(other(), [(other(key="serving/c", revision="r2"), None)], None)
    assert disagreement(MINE, [(other(revision="r2"), None)], None) == ""


def test_what_their_workers_announced() -> None:
    mine, theirs = ContractFacts("f", tokenizer="x"), ContractFacts("g", tokenizer="y")
    assert "contract field tokenizer y; here it is x" in disagreement(MINE, [(other(), theirs)], mine)
    assert disagreement(MINE, [(other(), theirs)], None) == ""


def test_pools_of_one_namespace_and_model_are_beside_each_other() -> None:
    fleets = Fleets()
    first, second = pool(), pool(name="second")
    assert fleets.put(first) == ()
    assert fleets.put(second) == ("serving/demo",)
    assert fleets.put(second) == ()
    assert fleets.put(pool({"model": {"name": "else"}}, name="third")) == ()
    assert fleets.put(pool(name="fourth", namespace="away")) == ()
    assert fleets.beside("serving/demo") == [declared(second)]
    assert fleets.put(pool({"engine": {"blockSize": 64}}, name="second")) == ("serving/demo",)
    assert fleets.drop("serving/second") == ("serving/demo",)
    assert fleets.beside("serving/demo") == []
    assert fleets.drop("serving/second") == ()
