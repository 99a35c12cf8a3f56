import dataclasses
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_operator.manifests import child_objects
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile.rollout import Rollout, digest_of, marked, pause, rollout_of
from cachefleet_operator.status.pods import Pod
from cachefleet_operator.status.troubles import Trouble
from tests.operator.pools import SETTINGS, pool

CALM = Rollout(changing=False, old_ready=True, new_all_ready=False, new_fail=False, paused=False)
BROKEN = Trouble(Reason.CRASH_LOOPING, "new", "engine", "boom", lasting=True)
rollouts = st.builds(Rollout, *[st.booleans()] * 5)


@pytest.mark.parametrize(
    ("rollout", "stands"),
    [
        (CALM, False),
        (dataclasses.replace(CALM, new_fail=True), True),
        (dataclasses.replace(CALM, new_fail=True, old_ready=False), False),
        (dataclasses.replace(CALM, new_fail=True, changing=True), False),
        (dataclasses.replace(CALM, new_fail=True, new_all_ready=True), False),
        (dataclasses.replace(CALM, paused=True), True),
        (dataclasses.replace(CALM, paused=True, new_all_ready=True), False),
        (dataclasses.replace(CALM, paused=True, changing=True), False),
        (dataclasses.replace(CALM, paused=True, old_ready=False), False),
    ],
)
def test_the_table(rollout: Rollout, *, stands: bool) -> None:
    assert pause(rollout) is stands


@given(rollouts)
def test_nothing_stands_still_for_ever(rollout: Rollout) -> None:
    """A change of the pool, workers that are well, or the loss of the old ones: each sets it going."""
    for way in ({"changing": True}, {"new_all_ready": True}, {"old_ready": False}):
        assert not pause(dataclasses.replace(rollout, **way))


@given(rollouts)
def test_what_was_decided_holds_while_nothing_changes(rollout: Rollout) -> None:
    decided = pause(rollout)
    assert pause(dataclasses.replace(rollout, paused=decided)) == decided


@given(rollouts)
def test_it_stands_still_only_beside_old_workers_that_serve(rollout: Rollout) -> None:
    if pause(rollout):
        assert rollout.old_ready
        assert rollout.new_fail or rollout.paused


def deployment(**spec: Any) -> dict[str, Any]:
    return next(each for each in child_objects.children(pool(spec), SETTINGS) if each["kind"] == "Deployment")


def live(manifest: dict[str, Any], *conditions: dict[str, str], observed: int = 1) -> dict[str, Any]:
    found = deepcopy(manifest)
    found["metadata"]["generation"] = 1
    return found | {"status": {"observedGeneration": observed, "conditions": list(conditions)}}


def test_old_and_new_are_told_apart_by_what_pods_carry() -> None:
    wanted = marked(deployment())
    new, old = digest_of(wanted), "another"
    pods = (Pod("old", template=old, ready=True), Pod("new", template=new, trouble=BROKEN))
    assert rollout_of(wanted, live(wanted), pods) == dataclasses.replace(CALM, new_fail=True)
    assert rollout_of(wanted, None, pods).changing
    assert rollout_of(wanted, live(marked(deployment(engine={"image": "b:2"}))), pods).changing
    leaving = dataclasses.replace(pods[0], leaving=True)
    assert not rollout_of(wanted, live(wanted), (leaving, pods[1])).old_ready


@pytest.mark.parametrize(("observed", "overdue"), [(1, True), (0, False)])
def test_a_deadline_counts_where_it_is_about_the_present_spec(observed: int, *, overdue: bool) -> None:
    wanted = marked(deployment())
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    assert rollout_of(wanted, live(wanted, late, observed=observed), ()).new_fail is overdue


def test_a_deadline_that_has_passed_stops_no_rollout_whose_first_worker_came_after_all() -> None:
    wanted = marked(deployment())
    late = live(wanted, {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"})
    old, new = Pod("old", template="another", ready=True), Pod("new", template=digest_of(wanted))
    assert pause(rollout_of(wanted, late, (old, new)))
    well = dataclasses.replace(new, ready=True)
    assert not pause(rollout_of(wanted, late, (old, well)))
    assert not pause(rollout_of(wanted, late, (old, well, dataclasses.replace(new, name="next"))))


@pytest.mark.parametrize("paused", [True, False])
def test_without_a_new_worker_there_is_nothing_to_stop(*, paused: bool) -> None:
    """Scaled in while paused, the failing one may have been the one to go: the rollout is tried again."""
    wanted = marked(deployment())
    late = live(marked(wanted, paused=paused), {"type": "Progressing", "status": "False", "reason": "late"})
    assert not pause(rollout_of(wanted, late, (Pod("old", template="another", ready=True),)))


def test_the_mark_follows_the_template_and_nothing_else() -> None:
    one, more, other = deployment(), deployment(replicas=5), deployment(engine={"image": "b:2"})
    assert digest_of(marked(one)) == digest_of(marked(more)) == digest_of(marked(one, paused=True)) != ""
    assert digest_of(marked(one)) != digest_of(marked(other))
    assert digest_of(marked(marked(one))) == digest_of(marked(one))
    assert marked(one)["spec"]["paused"] is False
    assert marked(one) != marked(one, paused=True)


def test_another_chat_template_is_another_template() -> None:
    made = [child_objects.children(pool(), SETTINGS, chat_template=each) for each in ("", "a", "b")]
    templates = {digest_of(marked(each)) for found in made for each in found if each["kind"] == "Deployment"}
    assert len(templates) == 3
