import datetime as dt
from typing import Any

import pytest

from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.degraded import degraded
from cachefleet_operator.status.pods import DELETION_COST, Pod, ended, pods_of, worst
from cachefleet_operator.status.pool_assessment import Observations, Workers
from cachefleet_operator.status.troubles import Trouble

NOW = dt.datetime(2026, 1, 1, 0, 1, tzinfo=dt.UTC)
ENDED = {"terminated": {"exitCode": 1, "reason": "Error", "message": "boom"}}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


def container(**state: Any) -> dict[str, Any]:
    return {"name": "engine", "ready": False, "restartCount": 0, **state}


def waiting(reason: str, **more: Any) -> dict[str, Any]:
    return container(state={"waiting": {"reason": reason, "message": "words of the kubelet"}}, **more)


def manifest(*containers: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "demo-a", "uid": "u"}, "status": {"containerStatuses": list(containers), **status}}


def read(found: dict[str, Any], grace: float = 10) -> Pod:
    (pod,) = pods_of([found], NOW, grace_seconds=grace, ready_seconds=60)
    return pod


def started(moment: str) -> dict[str, Any]:
    return container(state={"running": {"startedAt": moment}})


@pytest.mark.parametrize(
    ("found", "since"),
    [
        (manifest(started("2026-01-01T00:00:05Z")), 5),
        (manifest(started("2026-01-01T00:00:05Z"), initContainerStatuses=[started("2026-01-01T00:00:09Z")]), 9),
        (manifest(started("2026-01-01T00:00:05Z"), initContainerStatuses=[container(state=ENDED)]), 5),
        (manifest(started("2026-01-01T00:00:05Z"), container(state=ENDED)), None),
        (manifest(started("2026-01-01T00:00:05Z"), waiting("ContainerCreating")), None),
        (manifest(container(state={"running": {}})), None),
        (manifest(container()), None),
        (manifest(), None),
    ],
)
def test_since_when_all_its_containers_run(found: dict[str, Any], since: int | None) -> None:
    moment = None if since is None else dt.datetime(2026, 1, 1, 0, 0, since, tzinfo=dt.UTC)
    assert read(found).since == moment


@pytest.mark.parametrize(
    ("seen", "reason", "lasting"),
    [
        (waiting("ErrImagePull"), Reason.IMAGE_UNAVAILABLE, True),
        (waiting("ImagePullBackOff"), Reason.IMAGE_UNAVAILABLE, True),
        (waiting("InvalidImageName"), Reason.IMAGE_UNAVAILABLE, True),
        (waiting("ErrImageNeverPull"), Reason.IMAGE_UNAVAILABLE, True),
        (waiting("CreateContainerConfigError"), Reason.CONTAINER_REFUSED, True),
        (waiting("RunContainerError"), Reason.CONTAINER_REFUSED, True),
        (waiting("CrashLoopBackOff", restartCount=1, lastState=ENDED), Reason.CRASH_LOOPING, False),
        (waiting("CrashLoopBackOff", restartCount=2, lastState=ENDED), Reason.CRASH_LOOPING, True),
        (waiting("CrashLoopBackOff", restartCount=2, lastState=KILLED), Reason.OUT_OF_MEMORY, True),
        (container(state={"running": {}}, restartCount=2, lastState=ENDED), Reason.CRASH_LOOPING, True),
        (container(state=KILLED), Reason.OUT_OF_MEMORY, False),
        (container(state=ENDED), Reason.CRASHED, False),
        (container(state={"terminated": {"exitCode": 0, "reason": "Completed"}}), Reason.CRASHED, False),
        (container(state={"running": {}}, restartCount=1, lastState=ENDED), Reason.CRASHED, False),
        (container(state={"running": {}}, restartCount=1, lastState=KILLED), Reason.OUT_OF_MEMORY, False),
    ],
)
def test_is_in_trouble(seen: dict[str, Any], reason: Reason, *, lasting: bool) -> None:
    trouble = read(manifest(seen)).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.lasting, trouble.pod, trouble.container) == (reason, lasting, "demo-a", "engine")


def with_weights(name: str, digest: str, **metadata: Any) -> dict[str, Any]:
    """As a kubelet reports it that has the feature gate ImageVolumeWithDigest on."""
    mounts = [
        {"name": "cache", "mountPath": "/cache"},
        {"name": "weights-1", "mountPath": "/mnt/model", "volumeStatus": {"image": {"imageRef": digest}}},
    ]
    running = container(state={"running": {}}, volumeMounts=mounts)
    return {**manifest(running), "metadata": {"name": name, "uid": name, **metadata}}


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([("a", "r@sha256:1"), ("b", "r@sha256:2"), ("c", "r@sha256:1")], "pod a has the weights r@sha256:1, pod b r@"),
        ([("a", "r@sha256:1"), ("b", "r@sha256:1")], ""),
        ([("a", "r@sha256:1"), ("b", "")], ""),
    ],
    ids=["moved tag", "alike", "not told"],
)
def test_workers_with_other_images_of_one_tag_are_told(pods: list[tuple[str, str]], words: str) -> None:
    found = pods_of([with_weights(*each) for each in pods], NOW, grace_seconds=10, ready_seconds=60)
    finding = degraded(Workers(), Observations(found))
    assert (finding.reason == Reason.WEIGHTS_DIFFER) is bool(words)
    assert finding.message.startswith(words or "nothing is known to be wrong")


def test_a_worker_that_is_replaced_may_have_other_weights() -> None:
    leaving = with_weights("b", "r@sha256:2", deletionTimestamp="2026-01-01T00:00:05Z")
    found = pods_of([with_weights("a", "r@sha256:1"), leaving], NOW, grace_seconds=10, ready_seconds=60)
    assert Observations(found).differing_weights == ""


REFUSED = {"terminated": {"exitCode": 78, "reason": "Error", "message": "the engine answers HTTP 401"}}


@pytest.mark.parametrize("seen", [{"state": REFUSED}, {"state": {"running": {}}, "lastState": REFUSED}])
def test_a_refused_worker_key_is_trouble_at_the_first_time(seen: dict[str, Any]) -> None:
    pod = {"metadata": {"name": "demo-a"}, "status": {"initContainerStatuses": [{"name": "agent", **seen}]}}
    trouble = read(pod).trouble
    assert trouble is not None
    assert (trouble.reason, trouble.lasting) == (Reason.WORKER_KEY_REFUSED, True)
    assert trouble.message == "pod demo-a, container agent: the engine answers HTTP 401"


@pytest.mark.parametrize(
    "seen",
    [
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        container(state={"running": {}}),
        container(ready=True, state={"running": {}}, restartCount=9, lastState=ENDED),
    ],
)
def test_is_not_in_trouble(seen: dict[str, Any]) -> None:
    assert read(manifest(seen)).trouble is None


def ended_at(at: str, code: int = 139) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at}}


def not_ready_since(at: str, *containers: dict[str, Any]) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": at}]
    return {
        "metadata": {"name": "demo-a"},
        "status": {"initContainerStatuses": list(containers), "conditions": conditions},
    }


def test_a_crash_is_told_with_container_cause_time_and_what_to_do() -> None:
    crashed = container(state={"running": {}}, restartCount=1, lastState=ended_at("2026-01-01T00:00:29Z"))
    trouble = read(not_ready_since("2026-01-01T00:00:30Z", crashed)).trouble
    assert trouble is not None
    assert trouble.message == (
        "pod demo-a, container engine: restarted 1 time, last: Error, exit code 139 (SIGSEGV), "
        "since 2026-01-01T00:00:29Z; it is started again; its last words: kubectl logs demo-a -c engine --previous"
    )


def test_an_init_container_may_end() -> None:
    done = container(name="plugin", state={"terminated": {"exitCode": 0, "reason": "Completed"}}, restartCount=1)
    assert read(not_ready_since("2026-01-01T00:00:30Z", done)).trouble is None


def test_a_crash_keeps_a_pod_from_being_ready_until_it_is_though_its_container_runs_again() -> None:
    warming = container(ready=True, state={"running": {}}, restartCount=1, lastState=ended_at("2026-01-01T00:00:29Z"))
    trouble = read(not_ready_since("2026-01-01T00:00:30Z", warming)).trouble
    assert trouble is not None
    assert trouble.reason is Reason.CRASHED


def test_a_crash_of_long_ago_is_not_why_a_pod_is_not_ready_now() -> None:
    """The agent crashed yesterday; now its readiness fails since the engine has ended."""
    agent = container(name="agent", restartCount=1, lastState=ended_at("2025-12-31T00:00:00Z"))
    engine = container(state=ended_at("2026-01-01T00:00:29Z"))
    since = "2026-01-01T00:00:30Z"
    assert read(not_ready_since(since, agent)).trouble is None
    trouble = read(not_ready_since(since, agent | {"name": "agent"}, engine)).trouble
    assert trouble is not None
    assert trouble.container == "engine"


@pytest.mark.parametrize("seen", [waiting("ImagePullBackOff"), waiting("CrashLoopBackOff", lastState=ENDED)])
def test_every_trouble_says_since_when_and_what_to_do(seen: dict[str, Any]) -> None:
    trouble = read(not_ready_since("2026-01-01T00:00:30Z", seen)).trouble
    assert trouble is not None
    assert "since 2026-01-01T00:00:30Z; " in trouble.message


def test_words_are_the_kubelets_and_short() -> None:
    seen = container(state={"waiting": {"reason": "ErrImagePull", "message": "x" * 5000}})
    trouble = read(manifest(seen)).trouble
    assert trouble is not None
    assert trouble.message.startswith("pod demo-a, container engine: ErrImagePull: xxx")
    assert len(trouble.message) < 400


def test_a_sidecar_may_be_in_trouble_too() -> None:
    pod = read({"metadata": {"name": "a"}, "status": {"initContainerStatuses": [waiting("ImagePullBackOff")]}})
    assert pod.trouble is not None


def test_a_pod_is_without_a_node_for_a_grace() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    found = manifest(conditions=[condition | {"lastTransitionTime": "2026-01-01T00:00:52Z"}])
    assert read(found).trouble is None
    assert read(found).look_again == 2
    late = read(found, grace=8)
    since = "2026-01-01T00:00:52Z"
    assert late.trouble == Trouble(Reason.UNSCHEDULABLE, "demo-a", "", "0/3 nodes", lasting=False, since=since)
    assert late.look_again is None


@pytest.mark.parametrize("part", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}])
def test_who_leaves_or_is_ready_is_in_no_trouble(part: dict[str, Any]) -> None:
    conditions = [] if part else [{"type": "Ready", "status": "True"}]
    found = manifest(waiting("ImagePullBackOff"), conditions=conditions)
    found["metadata"] |= part
    pod = read(found)
    assert (pod.trouble, pod.leaving, pod.ready) == (None, bool(part), not part)


@pytest.mark.parametrize(("text", "cost"), [("7", 7), ("-1", -1), ("much", None), (None, None)])
def test_a_cost_is_a_number(text: str | None, cost: int | None) -> None:
    found = manifest()
    found["metadata"]["annotations"] = {DELETION_COST: text} if text else None
    assert read(found).cost == cost


def test_who_has_ended_is_no_worker() -> None:
    assert pods_of([manifest(phase="Failed"), manifest(phase="Succeeded")], NOW, grace_seconds=1, ready_seconds=1) == ()


def test_the_worst_is_what_lasts() -> None:
    passing = Trouble(Reason.UNSCHEDULABLE, "a", "", "", lasting=False)
    lasting = Trouble(Reason.CRASH_LOOPING, "b", "", "", lasting=True)
    assert worst([Pod("a", trouble=passing), Pod("b", trouble=lasting)]) is lasting
    assert worst([Pod("a", trouble=passing)]) is passing
    assert worst([Pod("a")]) is None


@pytest.mark.parametrize(("since", "late"), [("2026-01-01T00:00:01Z", False), ("2025-12-31T23:58:00Z", True)])
def test_a_pod_that_is_not_ready_for_longer_than_it_may_take_is_told_of(since: str, *, late: bool) -> None:
    found = read(manifest(conditions=[{"type": "Ready", "status": "False", "lastTransitionTime": since}]))
    assert (found.trouble is not None and found.trouble.reason is Reason.STALLED) is late


def failed(name: str, at: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": at}, "status": {"phase": "Failed", **status}}


def test_how_the_youngest_pod_failed_is_told_for_a_while() -> None:
    old = failed("a", "2025-12-31T00:00:00Z", reason="Evicted")
    new = failed("b", "2026-01-01T00:00:30Z", reason="UnexpectedAdmissionError", message="no device")
    assert ended([new, old, manifest()], NOW, seconds=60) == "pod b failed: UnexpectedAdmissionError: no device"
    assert ended([old, manifest(phase="Succeeded")], NOW, seconds=60) == ""
