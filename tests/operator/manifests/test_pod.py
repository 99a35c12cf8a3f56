from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefleet_operator.manifests.pod import AUDIENCE, TemplateError, pod_template
from cachefleet_operator.manifests.pod_times import grace_seconds
from tests.operator.pod_security import violations
from tests.operator.pools import SETTINGS, pool

CHAT: dict[str, Any] = {"model": {"chatTemplate": {"configMapKeyRef": {"name": "t", "key": "chat.jinja"}}}}

PARTS = ("engine", "agent")


def spec(changes: dict[str, Any] | None = None, **told: Any) -> dict[str, Any]:
    template: dict[str, Any] = pod_template(pool(changes), SETTINGS.model_copy(update=told))["spec"]
    return template


def patched(patch: dict[str, Any]) -> dict[str, Any]:
    return spec({"podTemplate": {"spec": patch}})


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in [*pod["initContainers"], *pod["containers"]] if each["name"] == name]
    return dict(found)


# What is in it


def test_the_plugin_is_copied_then_the_agent_is_up_then_the_engine_starts() -> None:
    pod = spec()
    assert [each["name"] for each in pod["initContainers"]] == ["plugin", "agent"]
    assert [each["name"] for each in pod["containers"]] == ["engine"]
    assert "restartPolicy" not in container(pod, "plugin")
    assert container(pod, "plugin")["args"] == ["python3", "-m", "cachefleet_worker.plugin_install", "/cachefleet"]
    assert container(pod, "plugin")["image"] == container(pod, "agent")["image"] == "example.org/agent:1"


def test_the_agent_is_a_native_sidecar_whose_readiness_is_the_pods() -> None:
    agent = container(spec(), "agent")
    assert agent["restartPolicy"] == "Always"
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "agent"}
    assert "readinessProbe" not in container(spec(), "engine")


@pytest.mark.parametrize("changes", [None, CHAT, {"device": {"resource": ""}}])
def test_keeps_to_the_restricted_profile(changes: dict[str, Any] | None) -> None:
    assert not violations(spec(changes))
    for name in ("plugin", "agent", "engine"):
        assert container(spec(changes), name)["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize(
    ("patch", "found"),
    [
        ({"hostIPC": True}, ["hostIPC"]),
        ({"volumes": [{"name": "w", "hostPath": {"path": "/w"}}]}, ["volume w: hostPath"]),
        ({"containers": [{"name": "engine", "securityContext": {"privileged": True}}]}, ["engine: privileged"]),
        ({"securityContext": {"runAsNonRoot": None}}, [f"{n}: runAsNonRoot" for n in ("plugin", "agent", "engine")]),
    ],
)
def test_what_checks_the_profile_finds_what_breaks_it(patch: dict[str, Any], found: list[str]) -> None:
    assert violations(patched(patch)) == found


def test_every_mount_has_its_volume_and_every_volume_is_mounted() -> None:
    pod = spec(CHAT)
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounted = {mount["name"] for each in [*pod["initContainers"], *pod["containers"]] for mount in each["volumeMounts"]}
    assert volumes == mounted


def test_only_the_copier_may_write_where_the_engine_reads_code_and_keys() -> None:
    pod = spec(CHAT)
    writable = {
        (each["name"], mount["name"])
        for each in [*pod["initContainers"], *pod["containers"]]
        for mount in each["volumeMounts"]
        if not mount.get("readOnly")
    }
    assert {pair for pair in writable if pair[1] in {"plugin", "keys", "policy", "token", "chat-template"}} == {
        ("plugin", "plugin")
    }
    assert "token" not in {mount["name"] for mount in container(pod, "engine")["volumeMounts"]}


def test_no_token_for_the_api_server_and_one_for_reports() -> None:
    assert spec()["automountServiceAccountToken"] is False
    token = next(volume for volume in spec()["volumes"] if volume["name"] == "token")
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == AUDIENCE


def test_workers_rather_stand_on_several_nodes_and_never_wait_for_that() -> None:
    (spread,) = spec()["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"] == {"matchLabels": {"cachefleet.io/pool": "demo"}}


def test_images_are_pulled_as_kubernetes_does_it_unless_told() -> None:
    pod = spec()
    assert "imagePullSecrets" not in pod
    assert not [each for each in [*pod["initContainers"], *pod["containers"]] if "imagePullPolicy" in each]
    told = spec(agent_pull_policy="Never", image_pull_secrets=("one", "two"))
    assert told["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert [each["imagePullPolicy"] for each in told["initContainers"]] == ["Never", "Never"]
    assert "imagePullPolicy" not in container(told, "engine")


# How it goes


def test_the_engine_has_the_agent_drain_where_the_agent_listens() -> None:
    pod = spec(worker_drain_seconds=77)
    engine, agent = ({each["name"]: each.get("value") for each in container(pod, name)["env"]} for name in PARTS)
    assert engine["CACHEFLEET_DRAIN_URL"] == f"http://localhost:8082{agent['CACHEFLEET_DRAIN_PATH']}"
    assert engine["CACHEFLEET_DRAIN_SECONDS"] == agent["CACHEFLEET_DRAIN_SECONDS"] == "77"
    assert agent["CACHEFLEET_AFTER_DRAIN"] == "stay"
    assert not [name for name in PARTS if "lifecycle" in container(pod, name)], "a mesh refuses the kubelet's requests"


def test_the_drains_path_is_a_pools_own() -> None:
    def path(uid: str) -> str:
        template = pod_template(pool(uid=uid), SETTINGS)
        told = {each["name"]: each.get("value") for each in container(template["spec"], "agent")["env"]}
        return str(told["CACHEFLEET_DRAIN_PATH"])

    assert path("a") == path("a") != path("b")
    assert len(path("a")) > 32
    assert "uid-1" not in path("uid-1")


@pytest.mark.parametrize(("drain", "shutdown"), [(120, 30), (1, 0), (3600, 600)])
def test_the_pod_is_given_the_time_that_its_parts_may_take(drain: int, shutdown: int) -> None:
    pod = spec(worker_drain_seconds=drain, worker_shutdown_seconds=shutdown)
    agent = {each["name"]: each.get("value") for each in container(pod, "agent")["env"]}
    assert agent["CACHEFLEET_DRAIN_SECONDS"] == str(drain)
    arguments = container(pod, "engine")["args"]
    assert ("--shutdown-timeout" in arguments) is bool(shutdown)
    assert pod["terminationGracePeriodSeconds"] > drain + shutdown
    assert grace_seconds(SETTINGS) == 165


@pytest.mark.parametrize(
    ("grace", "drain", "shutdown"),
    [(165, 120, 30), (600, 555, 30), (60, 15, 30), (30, 1, 14), (5, 1, 0), (None, 1, 14)],
)
def test_a_pools_own_grace_period_is_what_drain_and_shutdown_have(grace: int | None, drain: int, shutdown: int) -> None:
    """Kubernetes gives 30 s where the pool takes ours away."""
    patch: dict[str, Any] = {"spec": {"terminationGracePeriodSeconds": grace}}
    if grace is None:
        patch = {"remove": ["/spec/terminationGracePeriodSeconds"]}
    pod = spec({"podTemplate": patch})
    assert pod.get("terminationGracePeriodSeconds") == grace
    agent = {each["name"]: each.get("value") for each in container(pod, "agent")["env"]}
    assert agent["CACHEFLEET_DRAIN_SECONDS"] == str(drain)
    arguments = container(pod, "engine")["args"]
    told = arguments[arguments.index("--shutdown-timeout") + 1] if "--shutdown-timeout" in arguments else "0"
    assert told == str(shutdown)


IDENTITY = ("runAsUser", "runAsGroup", "fsGroup", "seccompProfile")


def test_a_cluster_may_choose_who_its_pods_are() -> None:
    fixed, left = spec(), spec(pod_identity="cluster")
    assert set(fixed["securityContext"]) == {"runAsNonRoot", *IDENTITY}
    assert left == {**fixed, "securityContext": {"runAsNonRoot": True}}
    keys = next(volume for volume in left["volumes"] if volume["name"] == "keys")
    assert keys["secret"]["defaultMode"] == 0o440, "of group 0, or of the fsGroup that the cluster gives"


@pytest.mark.parametrize("operator", ["fixed", "cluster"])
def test_a_pool_may_say_so_itself(operator: str) -> None:
    assert spec({"podIdentity": "Cluster"}, pod_identity=operator) == spec(pod_identity="cluster")
    assert spec({"podIdentity": "Fixed"}, pod_identity=operator) == spec(pod_identity="fixed")


def test_what_a_pool_says_of_that_itself_stays() -> None:
    own = {"podTemplate": {"spec": {"securityContext": {"fsGroup": 1000900001, "supplementalGroups": [44]}}}}
    pod = spec(own, pod_identity="cluster")
    assert pod["securityContext"] == {"runAsNonRoot": True, "fsGroup": 1000900001, "supplementalGroups": [44]}
    removed = {"podTemplate": {"remove": [f"/spec/securityContext/{name}" for name in IDENTITY]}}
    for chosen in ("fixed", "cluster"):
        assert spec(removed, pod_identity=chosen)["securityContext"] == {"runAsNonRoot": True}


# What replaces it and what does not

LIVE = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 50),
        "prefixCache": st.fixed_dictionaries(
            {},
            optional={
                "budgetMiB": st.integers(0, 4500),
                "maxEntries": st.integers(0, 100),
                "warmPrefixes": st.just(
                    [{"name": "w", "messages": [{"role": "system", "content": "x"}], "tenants": ["default"]}]
                ),
            },
        ),
        "hit": st.fixed_dictionaries(
            {},
            optional={
                "threshold": st.floats(0, 1),
                "objective": st.just({"ratio": 0.5}),
                "omitZeroCachedTokens": st.booleans(),
            },
        ),
        "preemption": st.fixed_dictionaries(
            {},
            optional={
                "policy": st.sampled_from(["HandBack", "Recompute"]),
                "rejectBelow": st.floats(0, 1),
                "maxHandBacks": st.integers(0, 16),
            },
        ),
        "admission": st.fixed_dictionaries({}, optional={"minFreeBlockPercent": st.integers(0, 90)}),
        "tenancy": st.sampled_from([{"isolation": "PerTenant"}, {"isolation": "Shared"}]),
        "model": st.just({"kvBytesPerToken": 2048}),
        "continuation": st.fixed_dictionaries({}, optional={"ttlSeconds": st.integers(1, 1000)}),
        "rollout": st.fixed_dictionaries(
            {}, optional={"maxSurge": st.integers(1, 9), "warmTimeoutSeconds": st.integers(0, 9)}
        ),
    },
)


@given(LIVE)
def test_what_is_changed_live_leaves_the_pod_as_it_is(changes: dict[str, Any]) -> None:
    assert repr(pod_template(pool(changes, generation=9), SETTINGS)) == repr(pod_template(pool(), SETTINGS))


ROLLING: list[dict[str, Any]] = [
    {"model": {"source": "org/other"}},
    {"model": {"revision": "abc"}},
    {"model": {"weightsMiB": 200}},
    {"model": {"hubTokenSecretRef": {"name": "s", "key": "k"}}},
    CHAT,
    {"role": "Prefill", "engine": {"kvTransfer": {"kv_connector": "X"}}},
    {"engine": {"image": "vllm/vllm-openai:v0.31.0"}},
    {"engine": {"tensorParallelSize": 2}},
    {"engine": {"blockSize": 32}},
    {"engine": {"maxModelLen": 1024}},
    {"engine": {"dtype": "bfloat16"}},
    {"engine": {"extraArgs": ["--x"]}},
    {"engine": {"env": [{"name": "X", "value": "1"}]}},
    {"device": {"resource": "amd.com/gpu"}},
    {"device": {"memoryMiB": 9000}},
    {"device": {"activationMiB": 1}},
    {"device": {"floorMiB": 1}},
    {"prefixCache": {"enabled": False}},
    {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}},
]


@pytest.mark.parametrize("changes", ROLLING, ids=repr)
@settings(max_examples=5)
@given(live=LIVE)
def test_what_a_running_engine_cannot_learn_replaces_it(changes: dict[str, Any], live: dict[str, Any]) -> None:
    both = {**live, **changes}
    assert pod_template(pool(both), SETTINGS) != pod_template(pool(), SETTINGS)


def test_another_chat_template_replaces_it() -> None:
    first, second = (pod_template(pool(CHAT), SETTINGS, chat_template=text) for text in ("a", "b"))
    assert first["spec"] == second["spec"]
    assert first["metadata"] != second["metadata"]
    assert "cachefleet.io/chat-template" not in pod_template(pool(CHAT), SETTINGS)["metadata"]["annotations"]


# What the pool's own patch does


def test_the_pools_patch_reaches_the_pod_but_not_its_identity() -> None:
    patch = {
        "metadata": {"labels": {"team": "x", "cachefleet.io/pool": "other"}},
        "spec": {"nodeSelector": {"gpu": "a"}, "containers": [{"name": "engine", "image": "mine"}]},
    }
    template = pod_template(pool({"podTemplate": patch}), SETTINGS)
    assert template["metadata"]["labels"]["team"] == "x"
    assert template["metadata"]["labels"]["cachefleet.io/pool"] == "demo"
    assert template["spec"]["nodeSelector"] == {"gpu": "a"}
    assert template["spec"]["containers"][0]["image"] == "mine"
    assert template["spec"]["containers"][0]["args"] == container(spec(), "engine")["args"]


def test_weights_from_a_volume_stand_beside_what_the_engine_has() -> None:
    claim = {"name": "weights", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    mount = {"name": "weights", "mountPath": "/weights", "readOnly": True}
    pod = patched({"volumes": [claim], "containers": [{"name": "engine", "volumeMounts": [mount]}]})
    assert pod["volumes"] == [*spec()["volumes"], claim]
    engine = container(pod, "engine")
    assert engine["volumeMounts"] == [*container(spec(), "engine")["volumeMounts"], mount]
    assert {**engine, "volumeMounts": None} == {**container(spec(), "engine"), "volumeMounts": None}
    assert not violations(pod)


def test_a_cache_that_outlives_the_pod_takes_the_place_of_ours() -> None:
    claim = {"name": "cache", "persistentVolumeClaim": {"claimName": "compiled"}}
    pod = patched({"volumes": [claim]})
    assert [volume for volume in pod["volumes"] if volume["name"] == "cache"] == [claim]


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ({"priorityClassName": "high"}, ["priorityClassName"]),
        ({"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}, ["tolerations"]),
        ({"terminationGracePeriodSeconds": 900}, ["terminationGracePeriodSeconds"]),
        ({"runtimeClassName": "nvidia"}, ["runtimeClassName"]),
    ],
)
def test_a_pods_own_fields_are_set_by_the_patch(patch: dict[str, Any], path: list[str]) -> None:
    assert patched(patch)[path[0]] == patch[path[0]]


def test_a_pool_on_cpus_may_ask_for_cores_beside_its_memory() -> None:
    cores = {"containers": [{"name": "engine", "resources": {"requests": {"cpu": "8"}}}]}
    pod = spec({"device": {"resource": ""}, "podTemplate": {"spec": cores}})
    assert container(pod, "engine")["resources"] == {"requests": {"memory": "8192Mi", "cpu": "8"}}


def test_the_spread_may_be_made_strict() -> None:
    strict = {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    (spread,) = patched({"topologySpreadConstraints": [strict]})["topologySpreadConstraints"]
    assert spread == {**spec()["topologySpreadConstraints"][0], **strict}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (
            {"nodeSelector": {}},
            "spec.podTemplate.nodeSelector: is not a known field; known are metadata, remove and",
        ),
        ({"spec": []}, "spec.podTemplate.spec: must be a mapping"),
        ({"metadata": {"name": "x"}}, "spec.podTemplate.metadata.name: is not a known field"),
        ({"metadata": {"labels": {"a": 1}}}, "spec.podTemplate.metadata.labels: must be a mapping of text"),
        ({"remove": "/spec/hostNetwork"}, "spec.podTemplate.remove: must be a list of paths such as /spec/"),
        ({"remove": ["spec.securityContext"]}, "spec.podTemplate.remove: must be a list of paths"),
        ({"remove": ["/spec"]}, "spec.podTemplate.remove: must be a list of paths"),
        ({"remove": ["/spec/securityContext/fsgroup"]}, "fsgroup names nothing in a worker's pod; .* has fsGroup, "),
        ({"metadata": {"labels": "a"}}, "spec.podTemplate.metadata.labels: must be a mapping of text"),
        (
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "A", "value": "a\0"}]}]}},
            r"^spec.podTemplate.spec.containers\[0\].env\[0\].value: must not have the character NUL",
        ),
        ({"metadata": {"annotations": {"a\0b": ""}}}, "^spec.podTemplate.metadata.annotations: must not have the char"),
    ],
)
def test_a_patch_that_is_none_says_where(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        pod_template(pool({"podTemplate": patch}), SETTINGS)


def test_what_a_pool_removes_is_gone_and_something_else_may_take_its_place() -> None:
    paths = ["/spec/topologySpreadConstraints", "/spec/containers/engine/livenessProbe", "/spec/securityContext"]
    template = {"remove": paths, "spec": {"securityContext": {"runAsUser": 7}}}
    pod = spec({"podTemplate": template})
    assert "topologySpreadConstraints" not in pod
    assert "livenessProbe" not in container(pod, "engine")
    assert pod["securityContext"] == {"runAsUser": 7}


def test_labels_that_select_the_pods_come_back() -> None:
    path = "/metadata/labels/cachefleet.io~1pool"
    template = pod_template(pool({"podTemplate": {"remove": [path]}}), SETTINGS)
    assert template["metadata"]["labels"]["cachefleet.io/pool"] == "demo"
