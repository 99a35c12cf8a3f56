"""The pods of the release, and what keeps them up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from cachefleet_local.__main__ import app
from cachefleet_operator import names
from tests.chart.helm import Object, Values, template
from tests.chart.matrix import MATRIX
from tests.chart.restricted import violations

pytestmark = pytest.mark.cluster


def volumes(pod: Object) -> dict[str, Object]:
    return {volume["name"]: volume for volume in pod["volumes"]}


def mounts(container: Object) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("values", MATRIX)
def test_every_pod_is_restricted(values: str) -> None:
    left = LEFT_OPEN if MATRIX[values].get("podIdentity") == "cluster" else ()
    for name, pod in template(MATRIX[values]).pods():
        assert [found for found in violations(pod) if not found.endswith(left)] == [], name


LEFT_OPEN = ("runAsUser is 0 or no number", "seccompProfile is not RuntimeDefault")
OPENSHIFT = "security.openshift.io/v1"


@pytest.mark.parametrize(
    ("chosen", "apis", "identity"),
    [
        ({}, (), "fixed"),
        ({}, (OPENSHIFT,), "cluster"),
        ({"podIdentity": "cluster"}, (), "cluster"),
        ({"podIdentity": "fixed"}, (OPENSHIFT,), "fixed"),
    ],
)
def test_who_pods_are_is_left_to_a_cluster_that_chooses_it(
    chosen: Values, apis: tuple[str, ...], identity: str
) -> None:
    rendered = template(chosen, apis=apis)
    fields = {"runAsUser", "runAsGroup", "fsGroup", "seccompProfile"} if identity == "fixed" else set()
    for name, pod in rendered.pods():
        assert set(pod["securityContext"]) == {"runAsNonRoot", *fields}, name
    told = {entry["name"]: entry.get("value") for entry in rendered.container("operator")["env"]}
    assert told["CACHEFLEET_POD_IDENTITY"] == identity, "and so of workers"


def test_the_checker_finds_what_it_is_for() -> None:
    pod: Object = {"hostNetwork": True, "containers": [{"name": "a"}], "volumes": [{"name": "v", "hostPath": {}}]}

    found = "\n".join(violations(pod))
    for part in ("hostNetwork", "hostPath", "runAsNonRoot", "seccomp", "Escalation", "capabilities", "readOnlyRoot"):
        assert part in found


@pytest.mark.parametrize("values", MATRIX)
def test_every_container_may_write_to_tmp_and_has_its_volumes(values: str) -> None:
    for _, pod in template(MATRIX[values]).pods():
        for container in pod["containers"]:
            assert mounts(container)["tmp"] == "/tmp"  # noqa: S108  # the container's own
            assert set(mounts(container)) == set(volumes(pod))
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
SIZES = re.findall(r"^\| ([\d,]+) \| (\d+m) \| (\d+Mi) \| (\d+Mi) \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}-workers")
def test_the_control_planes_resources_follow_its_workers_as_the_page_on_scale_says(size: tuple[str, ...]) -> None:
    workers, cpu, memory, limit = size
    container = template({"controlPlane": {"workers": int(workers.replace(",", ""))}}).container("controlplane")
    expected = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": limit}}
    assert container["resources"] == expected


def test_that_page_has_sizes_and_the_default_is_among_them() -> None:
    assert [workers for workers, *_ in SIZES] == ["10", "100", "300", "1,000"]
    made, hundred = template(), template({"controlPlane": {"workers": 100}})
    assert made.container("controlplane")["resources"] == hundred.container("controlplane")["resources"]


def test_resources_that_are_given_stand_whatever_the_workers() -> None:
    given = {"requests": {"cpu": "3", "memory": "8Gi"}}
    made = template({"controlPlane": {"workers": 1000, "resources": given}})
    assert made.container("controlplane")["resources"] == given


@pytest.mark.parametrize("part", ["operator", "controlplane"])
def test_probes(part: str) -> None:
    container = template().container(part)
    ports = {port["name"] for port in container["ports"]}

    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert {container[name]["httpGet"]["port"] for name in paths} <= ports


@pytest.mark.parametrize("part", ["operator", "controlplane"])
def test_a_new_pod_is_ready_before_an_old_one_goes(part: str) -> None:
    deployment = template().one("Deployment", f"-{part}")["spec"]

    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize(("withdraw", "drain"), [(5, 60), (0, 0), (30, 3600)])
def test_a_pod_is_not_killed_before_its_answers_ended(withdraw: int, drain: int) -> None:
    pod = template({"controlPlane": {"withdrawSeconds": withdraw, "drainSeconds": drain}}).pod("controlplane")

    assert pod["terminationGracePeriodSeconds"] >= withdraw + drain + 5


def test_replicas_are_apart_where_that_can_be() -> None:
    for part in ("operator", "controlplane"):
        spread = template().pod(part)["topologySpreadConstraints"]
        assert {rule["topologyKey"] for rule in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
        assert {rule["whenUnsatisfiable"] for rule in spread} == {"ScheduleAnyway"}


def test_one_pod_may_be_evicted_at_a_time() -> None:
    budgets = template().of("PodDisruptionBudget")

    assert len(budgets) == 2
    assert {budget["spec"]["maxUnavailable"] for budget in budgets} == {1}


def test_a_single_replica_does_not_hold_up_a_drain() -> None:
    assert template(MATRIX["single"]).of("PodDisruptionBudget") == []
    assert len(template({"operator": {"replicas": 1}}).of("PodDisruptionBudget")) == 1


def test_replicas_may_be_left_to_an_autoscaler() -> None:
    objects = template(MATRIX["autoscaled"])

    assert "replicas" not in objects.one("Deployment", "-controlplane")["spec"]
    assert objects.one("Deployment", "-operator")["spec"]["replicas"] == 2
    variables = {entry["name"]: entry.get("value") for entry in objects.container("controlplane")["env"]}
    assert variables["CACHEFLEET_REPLICAS"] == "2", "there may be others, whose databases are not this one's"
    assert objects.one("PodDisruptionBudget", "-controlplane")


def test_the_control_plane_waits_for_the_key_that_the_operator_makes() -> None:
    objects = template()
    key = volumes(objects.pod("controlplane"))["fleet-key"]["secret"]

    assert key["secretName"] == names.FLEET_KEY_SECRET
    assert [item["key"] for item in key["items"]] == [names.FLEET_KEY]
    assert not key.get("optional")
    assert key["defaultMode"] == 0o440
    variables = {entry["name"]: entry.get("value") for entry in objects.container("controlplane")["env"]}
    where = mounts(objects.container("controlplane"))["fleet-key"]
    assert variables["CACHEFLEET_FLEET_KEY_FILE"] == f"{where}/{key['items'][0]['path']}"


def test_the_operator_shows_the_control_plane_a_token_of_its_own() -> None:
    objects = template()
    [source] = volumes(objects.pod("operator"))["token"]["projected"]["sources"]
    variables = {entry["name"]: entry.get("value") for entry in objects.container("operator")["env"]}

    assert source["serviceAccountToken"]["audience"] == "cachefleet"
    where = mounts(objects.container("operator"))["token"]
    assert variables["CACHEFLEET_ADMIN_TOKEN_FILE"] == f"{where}/{source['serviceAccountToken']['path']}"


def test_the_store_is_a_folder_of_the_pod_or_a_volume() -> None:
    def data(values: str) -> Object:
        return volumes(template(MATRIX[values]).pod("controlplane"))["data"]

    assert "emptyDir" in data("defaults")
    assert data("persistent")["persistentVolumeClaim"]["claimName"] == "cachefleet-controlplane"
    assert data("claimed")["persistentVolumeClaim"]["claimName"] == "mine"


def test_a_claim_is_made_once_and_stays() -> None:
    [claim] = template(MATRIX["persistent"]).of("PersistentVolumeClaim")

    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert claim["spec"]["storageClassName"] == "fast"
    assert template(MATRIX["claimed"]).of("PersistentVolumeClaim") == []
    assert template().of("PersistentVolumeClaim") == []


def test_one_sqlite_file_never_has_two_pods() -> None:
    deployment = template(MATRIX["persistent"]).one("Deployment", "-controlplane")["spec"]

    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {"type": "Recreate"}


def test_a_database_s_url_comes_from_a_secret() -> None:
    container = template(MATRIX["database"]).container("controlplane")
    [url] = [entry for entry in container["env"] if entry["name"] == "CACHEFLEET_DATABASE_URL"]

    assert url == {"name": url["name"], "valueFrom": {"secretKeyRef": {"name": "db", "key": "uri"}}}


@pytest.mark.parametrize(
    ("batches", "secret"),
    [
        ({"enabled": True, "filesUrl": "s3://b/p", "filesSecretName": "keys"}, ["keys"]),
        ({"enabled": True, "filesUrl": "s3://b/p"}, []),
        ({"enabled": True, "filesSecretName": "keys"}, []),
        ({"filesUrl": "s3://b/p", "filesSecretName": "keys"}, []),
    ],
)
def test_credentials_of_object_storage_come_from_a_secret_where_files_are_kept_there(
    batches: Object, secret: list[str]
) -> None:
    database = {"name": "postgres"}
    own = template({"controlPlane": {"databaseUrlSecretRef": database, "batches": batches}}).container("controlplane")
    assert [one["secretRef"]["name"] for one in own.get("envFrom", [])] == secret


@pytest.mark.parametrize("values", MATRIX)
def test_all_pods_run_the_same_image(values: str) -> None:
    objects = template(MATRIX[values])
    variables = {entry["name"]: entry.get("value") for entry in objects.container("operator")["env"]}

    images = {container["image"] for _, pod in objects.pods() for container in pod["containers"]}
    assert images == {variables["CACHEFLEET_AGENT_IMAGE"]}


def test_image_by_digest_from_a_private_registry() -> None:
    pods = dict(template(MATRIX["private registry"]).pods())

    for pod in pods.values():
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["containers"][0]["imagePullPolicy"] == "Always"
        assert pod["containers"][0]["image"] == f"registry.example:5000/team/cachefleet@sha256:{'0' * 64}"


def test_services() -> None:
    objects = template()
    gateway, headless = objects.one("Service", "-gateway")["spec"], objects.one("Service", "-headless")["spec"]

    assert (gateway["type"], gateway["ports"][0]["port"]) == ("ClusterIP", 8080)
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True


def test_a_load_balancer() -> None:
    spec = template(MATRIX["load balanced"]).one("Service", "-gateway")["spec"]

    assert (spec["type"], spec["ports"][0]["port"], spec["ports"][0]["nodePort"]) == ("LoadBalancer", 80, 30080)
    assert spec["loadBalancerSourceRanges"] == ["10.0.0.0/8"]


def test_placement_reaches_both_parts() -> None:
    objects = template(MATRIX["placed"])

    for part in ("operator", "controlplane"):
        pod = objects.pod(part)
        assert pod["priorityClassName"] == "important"
        assert pod["tolerations"][0]["key"] == "dedicated"
        assert "topologySpreadConstraints" not in pod
        labels = objects.one("Deployment", f"-{part}")["spec"]["template"]["metadata"]["labels"]
        assert (labels["cost"], labels["team"]) == ("shared", "inference")


def test_a_new_version_of_the_chart_alone_restarts_nothing() -> None:
    for deployment in template().of("Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & labels.keys()


def test_no_container_replaces_the_images_entry_point_which_passes_signals_on() -> None:
    for kind in ("Deployment", "Pod"):
        for found in template().of(kind):
            spec = found["spec"]["template"]["spec"] if kind == "Deployment" else found["spec"]
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                assert "command" not in container
                assert container["args"]


def test_the_test_asks_the_gateway() -> None:
    pod = template(MATRIX["tuned"]).one("Pod", "-test-hit")
    [container] = pod["spec"]["containers"]

    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    # With hook-succeeded `helm test --logs` would find no pod to read.
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"
    assert "http://cachefleet-gateway.cachefleet-system.svc:8080" in container["args"]
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "tenant", "key": "key"}


@pytest.mark.parametrize(("values", "scheme"), [("defaults", "http"), ("https", "https")])
def test_the_command_of_the_test_exists(values: str, scheme: str) -> None:
    [container] = template(MATRIX[values]).one("Pod", "-test-hit")["spec"]["containers"]
    program, *words = container["args"][:3]
    command = typer.main.get_command(app)
    for word in words:
        command = getattr(command, "commands")[word]  # noqa: B009  # of a group

    assert program == "cachefleet"
    with command.make_context("hit", list(container["args"][3:])) as context:
        assert context.params["gateway"] == f"{scheme}://cachefleet-gateway.cachefleet-system.svc:8080"
        assert context.params["wait"] == 120


@pytest.mark.parametrize(("tls", "protocol"), [(True, "https"), (False, "kubernetes.io/h2c")])
def test_the_picker_is_a_port_of_the_control_plane_and_its_service(*, tls: bool, protocol: str) -> None:
    objects = template({"controlPlane": {"picker": {"enabled": True}}, "tls": {"enabled": tls}})
    container = objects.container("controlplane")
    service = objects.one("Service", "-controlplane")
    ports = {port["name"]: port for port in service["spec"]["ports"]}
    assert {"name": "picker", "containerPort": 9002, "protocol": "TCP"} in container["ports"]
    assert {"name": "CACHEFLEET_PICKER_PORT", "value": "9002"} in container["env"]
    assert (ports["picker"]["port"], ports["picker"]["targetPort"]) == (9002, "picker")
    assert ports["picker"]["appProtocol"] == protocol
    plain = template().container("controlplane")
    assert "picker" not in {port["name"] for port in plain["ports"]}


def test_the_operator_is_told_of_the_picker_where_it_makes_inference_pools() -> None:
    objects = template(MATRIX["inference pools"])
    told = {"name": "CACHEFLEET_PICKER_SERVICE", "value": "cachefleet-controlplane:9002"}
    assert told in objects.container("operator")["env"]
    service = objects.one("Service", "-controlplane")
    assert (service["metadata"]["name"], 9002) == ("cachefleet-controlplane", service["spec"]["ports"][-1]["port"])
    assert {"name": "CACHEFLEET_INFERENCE_OBJECTIVES", "value": "true"} in objects.container("controlplane")["env"]
    plain = template(MATRIX["picker"]).container("operator")["env"]
    assert "CACHEFLEET_PICKER_SERVICE" not in {each["name"] for each in plain}
