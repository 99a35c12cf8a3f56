from hypothesis import given
from hypothesis import strategies as st

from cachefleet_operator.reconcile.deletion_cost import costs, ranks
from cachefleet_operator.status.pods import DELETION_COST, Pod

POD_NAMES = ["a", "b", "c", "d", "e"]
values = st.dictionaries(st.sampled_from(POD_NAMES), st.floats(0, 1e12), max_size=5)
pods = st.lists(st.builds(Pod, st.sampled_from(POD_NAMES), leaving=st.booleans()), unique_by=lambda pod: pod.name)


@given(pods, values)
def test_the_least_valuable_goes_first_and_the_unknown_before_it(found: list[Pod], worth: dict[str, float]) -> None:
    wanted = ranks(found, worth)
    assert set(wanted) == {pod.name for pod in found if not pod.leaving}
    assert sorted(wanted.values()) == list(range(len(wanted)))
    for one in wanted:
        for other in wanted:
            if worth.get(one, -1.0) < worth.get(other, -1.0):
                assert wanted[one] < wanted[other]


@given(pods, values)
def test_written_is_what_differs_and_written_once(found: list[Pod], worth: dict[str, float]) -> None:
    written = costs("serving", found, worth)
    if not worth:
        assert written == []
        return
    wanted = {
        action.manifest["metadata"]["name"]: action.manifest["metadata"]["annotations"][DELETION_COST]
        for action in written
    }
    assert wanted == {name: str(rank) for name, rank in ranks(found, worth).items()}
    then = [Pod(pod.name, leaving=pod.leaving, cost=int(wanted.get(pod.name, 0))) for pod in found]
    assert costs("serving", then, worth) == []


def test_a_note_is_for_one_pod_and_makes_none() -> None:
    (action,) = costs("serving", [Pod("a", uid="u-1")], {"a": 1.0})
    assert action.manifest["metadata"]["uid"] == "u-1"
    assert set(action.manifest) == {"apiVersion", "kind", "metadata"}
