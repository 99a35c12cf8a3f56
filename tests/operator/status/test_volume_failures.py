"""Pods that wait for a volume, and what events say of it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from cachefleet_operator import names
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.pods import Pod, pods_of
from cachefleet_operator.status.troubles import Trouble
from cachefleet_operator.status.volume_failures import LOOK_SECONDS, failure, waits

NOW = dt.datetime(2026, 1, 1, 0, 1, tzinfo=dt.UTC)
MULTI = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) demo-workers-a'


def pod(name: str = "demo-b", *, since: str = "2026-01-01T00:00:10Z", state: Any = None, template: str = "new") -> Any:
    begun = {"waiting": {"reason": "PodInitializing"}} if state is None else state
    return {
        "metadata": {"name": name, "uid": name, "annotations": {names.TEMPLATE: template}},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}],
            "initContainerStatuses": [{"name": "plugin", "state": begun}],
            "containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}],
        },
    }


def event(reason: str, at: str, message: str = "words", **more: Any) -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": at, **more}


def read(found: dict[str, Any], words: str = "", *others: dict[str, Any], surges: bool = False) -> Pod:
    volumes = {found["metadata"]["name"]: words} if words else {}
    pods = pods_of([found, *others], NOW, grace_seconds=5, ready_seconds=60, volumes=volumes, surges=surges)
    return next(each for each in pods if each.name == found["metadata"]["name"])


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        (pod(), 50),
        (pod(state={"waiting": {"reason": "ContainerCreating"}}), 50),
        (pod(state={"waiting": {"reason": "ErrImagePull"}}), None),
        (pod(state={"running": {}}), None),
        (pod(state={"terminated": {"exitCode": 0}}), None),
        (pod(since="never"), None),
        ({"metadata": {"name": "a"}}, None),
        ({**pod(), "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:10Z"}}, None),
    ],
)
def test_it_waits_while_it_has_a_node_and_no_container(found: dict[str, Any], seconds: int | None) -> None:
    assert waits(found, NOW) == seconds


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event("FailedMount", "2026-01-01T00:00:20Z", "a\n  b")], "FailedMount: a b"),
        ([event("FailedAttachVolume", "2026-01-01T00:00:20Z")], "FailedAttachVolume: words"),
        ([event("Scheduled", "2026-01-01T00:00:20Z")], ""),
        ([event("FailedMount", "2026-01-01T00:00:20Z"), event("Pulling", "2026-01-01T00:00:30Z")], ""),
        ([event("Pulled", "2026-01-01T00:00:10Z"), event("FailedMount", "2026-01-01T00:00:30Z")], "FailedMount: words"),
        (
            [event("FailedMount", "2026-01-01T00:00:30Z", "late"), event("FailedMount", "2026-01-01T00:00:20Z")],
            "FailedMount: late",
        ),
        (
            [
                {
                    "reason": "FailedMount",
                    "message": "m",
                    "eventTime": "2026-01-01T00:00:20.000000Z",
                    "lastTimestamp": None,
                }
            ],
            "FailedMount: m",
        ),
        ([event("FailedMount", "no time")], ""),
        ([], ""),
    ],
)
def test_the_last_failure_counts_until_an_image_is_pulled(events: list[dict[str, Any]], words: str) -> None:
    assert failure(events) == words


def test_it_is_told_with_the_events_words_and_looked_at_again() -> None:
    found = read(pod(), f"FailedAttachVolume: {MULTI}")
    assert found.trouble is not None
    assert (found.trouble.reason, found.trouble.lasting) == (Reason.VOLUME_UNAVAILABLE, False)
    assert found.trouble.message == (
        f"pod demo-b: FailedAttachVolume: {MULTI}, since 2026-01-01T00:00:10Z; "
        "only one node may mount it: use a claim that several nodes may (ReadWriteMany)"
    )
    assert found.look_again == LOOK_SECONDS


def test_a_wait_without_a_known_cause_is_looked_at_again() -> None:
    assert (read(pod()).trouble, read(pod()).look_again) == (None, LOOK_SECONDS)
    assert read(pod(since="2026-01-01T00:00:50Z")).look_again == 10


OLD_FIRST = "or let an old worker go first: rollout.maxSurge: 0, maxUnavailable: 1"


@pytest.mark.parametrize("surges", [True, False])
def test_in_a_rollout_an_old_worker_may_hold_what_the_new_one_needs(surges: bool) -> None:  # noqa: FBT001
    old = pod("demo-a", template="old")
    for beside, expected in (((), False), ((old,), surges), ((pod("demo-c"),), False)):
        trouble = read(pod(), f"FailedAttachVolume: {MULTI}", *beside, surges=surges).trouble
        assert trouble is not None
        assert trouble.message.endswith(OLD_FIRST) is expected


@pytest.mark.parametrize(
    ("reason", "words", "advice"),
    [
        ("Unschedulable", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", f"ask for less, {OLD_FIRST}"),
        ("Unschedulable", 'persistentvolumeclaim "compiled" not found', "create that claim, or correct its name"),
        ("Unschedulable", "pod has unbound immediate PersistentVolumeClaims", "kubectl describe pvc"),
        (
            "VolumeUnavailable",
            'FailedMount: failed to get Plugin from volumeSpec for volume "weights-1" err=no volume plugin matched',
            "with the feature gate ImageVolume on",
        ),
        (
            "ContainerRefused",
            'CreateContainerError: failed to generate spec: failed to mkdir "": mkdir : no such file or directory',
            "it needs containerd 2.1 or CRI-O 1.31",
        ),
        (
            "ContainerRefused",
            'CreateContainerError: ImageVolumeMountFailed: failed to ensure image subpath "nope/x" in "/run/x"',
            "the image has no such folder: correct subPath",
        ),
        ("ContainerRefused", 'CreateContainerConfigError: secret "a" not found', "correct what it names"),
        (
            "ImageUnavailable",
            "ErrImagePull: failed to unpack image: mismatched image rootfs and manifest layers",
            "build an image of its files",
        ),
        ("ImageUnavailable", "ErrImagePull: not found", "correct the image, or give pull secrets"),
        ("Unschedulable", "2 node(s) had volume node affinity conflict", "use one that nodes share"),
        (
            "Unschedulable",
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
            OLD_FIRST,
        ),
        (
            "VolumeUnavailable",
            'FailedMount: MountVolume.SetUp failed for volume "c" : configmap "c" not found',
            "create",
        ),
        ("VolumeUnavailable", "FailedMount: timed out waiting for the condition", "kubectl describe pod a"),
    ],
)
def test_advice_fits_the_cause(reason: str, words: str, advice: str) -> None:
    message = Trouble(Reason(reason), "a", "", words, lasting=False, surging=True).message
    assert advice in message.partition("; ")[2]
    assert ("maxSurge" in message) is (OLD_FIRST in advice)
