"""Rights: exactly those that the parts use, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pytest

from cachefleet_controlplane.internal_auth.admin_rights import AUDIT, FLUSH, ROUTING
from cachefleet_controlplane.internal_auth.admin_rights import RIGHTS as ADMIN_RIGHTS
from cachefleet_operator.names import FLEET_KEY_SECRET
from e2e.cluster.rights import OF_INFERENCE_POOLS, RIGHTS
from tests.chart.helm import NAMESPACE, Object, Rendered, template
from tests.chart.matrix import MATRIX

pytestmark = pytest.mark.cluster

Rights = dict[tuple[str, str], frozenset[str]]

CONTROL_PLANE: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("cachefleet.io", "prefixcachepools"): frozenset({"list", "watch"}),
    ("discovery.k8s.io", "endpointslices"): frozenset({"list", "watch"}),
}
HOME: Final = {("coordination.k8s.io", "leases"), ("", "secrets"), ("", "configmaps")}


WIDE: Final = {("resource.k8s.io", each) for each in ("deviceclasses", "devicetaintrules", "resourceslices")}
"""Of objects that are in no namespace."""


def of_namespaces(given: Mapping[tuple[str, str], frozenset[str]]) -> Rights:
    return {key: verbs for key, verbs in given.items() if key not in WIDE}


def rights(rules: Iterable[Object]) -> Rights:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return {key: frozenset(verbs) for key, verbs in found.items()}


def granted(objects: Rendered, account: str) -> dict[str, Rights]:
    """By namespace ("" for all), what the rules that are bound to an account allow."""
    found: dict[str, list[Object]] = {}
    for binding in [*objects.of("ClusterRoleBinding"), *objects.of("RoleBinding")]:
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        if subject in binding["subjects"] and binding["roleRef"]["name"] != "system:auth-delegator":
            namespace = binding["metadata"].get("namespace", "")
            roles = [role for role in objects.of(binding["roleRef"]["kind"]) if _is(role, binding, namespace)]
            assert len(roles) == 1
            found.setdefault(namespace, []).extend(roles[0]["rules"])
    return {namespace: rights(rules) for namespace, rules in found.items()}


def _is(role: Object, binding: Object, namespace: str) -> bool:
    metadata = role["metadata"]
    return bool(metadata["name"] == binding["roleRef"]["name"] and metadata.get("namespace", "") == namespace)


def merged(*parts: Rights) -> Rights:
    return rights(
        {"apiGroups": [group], "resources": [resource], "verbs": sorted(verbs)}
        for part in parts
        for (group, resource), verbs in part.items()
    )


def test_the_operator_has_the_rights_it_was_seen_to_use() -> None:
    have = granted(template(), "cachefleet-operator")

    assert have.keys() == {"", NAMESPACE}
    assert merged(*have.values()) == RIGHTS
    assert have[NAMESPACE].keys() == HOME


def test_rights_for_inference_pools_are_given_where_they_are_made_alone() -> None:
    have = granted(template(MATRIX["inference pools"]), "cachefleet-operator")
    assert merged(*have.values()) == {**RIGHTS, **OF_INFERENCE_POOLS}
    objectives = {("inference.networking.x-k8s.io", "inferenceobjectives"): frozenset({"list", "watch"})}
    asked = granted(template(MATRIX["inference pools"]), "cachefleet-controlplane")
    assert asked == {"": {**CONTROL_PLANE, **objectives}}
    without = template({"controlPlane": {"picker": {"inferencePools": True}}})
    assert merged(*granted(without, "cachefleet-operator").values()) == RIGHTS, "no picker, no InferencePools"
    assert granted(without, "cachefleet-controlplane") == {"": CONTROL_PLANE}


def test_of_its_own_namespace_s_secrets_it_reads_by_name_alone() -> None:
    rules = template(MATRIX["namespaced"]).one("Role", "-operator-home")["rules"]
    named = {verb: _named(rules, verb) for verb in ("create", "get", "update")}

    issued = {"cachefleet-ca", "cachefleet-controlplane-tls"}
    assert named == {"create": {""}, "get": issued | {FLEET_KEY_SECRET}, "update": issued}


def test_certificates_of_others_are_read_and_not_changed() -> None:
    rules = template(MATRIX["certificates of others, namespaced"]).one("Role", "-operator-home")["rules"]
    assert _named(rules, "get") == {FLEET_KEY_SECRET, "plane-tls"}
    assert _named(rules, "update") == set()


def _named(rules: list[Object], verb: str) -> set[str]:
    """The names of the Secrets for which there is a right, "" for all."""
    of_secrets = [rule for rule in rules if rule["resources"] == ["secrets"] and verb in rule["verbs"]]
    return {name for rule in of_secrets for name in rule.get("resourceNames", [""])}


def test_leases_are_its_own_namespace_s_alone() -> None:
    assert ("coordination.k8s.io", "leases") not in granted(template(), "cachefleet-operator")[""]


def test_in_listed_namespaces_it_has_the_same_and_no_more() -> None:
    wide = granted(template(), "cachefleet-operator")
    narrow = granted(template(MATRIX["namespaced"]), "cachefleet-operator")

    assert narrow.keys() == {"serving", "batch", NAMESPACE}
    assert narrow["serving"] == narrow["batch"] == of_namespaces(wide[""])
    assert narrow[NAMESPACE] == wide[NAMESPACE]


def test_the_release_s_own_namespace_may_be_listed() -> None:
    have = granted(template(MATRIX["namespaced with its own"]), "cachefleet-operator")

    assert have == {NAMESPACE: of_namespaces(RIGHTS)}


def test_the_control_plane_reads_and_asks() -> None:
    assert granted(template(), "cachefleet-controlplane") == {"": CONTROL_PLANE}
    assert granted(template(MATRIX["namespaced"]), "cachefleet-controlplane") == {
        "serving": CONTROL_PLANE,
        "batch": CONTROL_PLANE,
    }


@pytest.mark.parametrize("values", ["persistent", "database"])
def test_the_control_plane_has_one_config_map_for_what_must_outlive_its_store(values: str) -> None:
    objects = template(MATRIX[values])
    made = objects.one("ConfigMap", "-access")["metadata"]
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [made["name"]], "verbs": ["get", "patch"]}

    assert objects.one("Role", "-controlplane-home")["rules"] == [rule]
    assert made["annotations"] == {"helm.sh/resource-policy": "keep"}
    env = {each["name"]: each.get("value") for each in objects.container("controlplane")["env"]}
    assert env["CACHEFLEET_ACCESS_CONFIG_MAP"] == f"{NAMESPACE}/{made['name']}"


@pytest.mark.parametrize("values", [{}, {**MATRIX["persistent"], "rbac": {"create": False}}])
def test_no_config_map_is_named_that_cannot_be_read_or_has_no_use(values: Object) -> None:
    objects = template(values)
    names = [each["metadata"]["name"] for each in objects]

    assert not [name for name in names if name.endswith(("-access", "-controlplane-home"))]
    env = [each["name"] for each in objects.container("controlplane")["env"]]
    assert "CACHEFLEET_ACCESS_CONFIG_MAP" not in env


@pytest.mark.parametrize("values", ["defaults", "namespaced", "placed"])
def test_tokens_are_reviewed_by_the_cluster_s_own_role(values: str) -> None:
    [binding] = [o for o in template(MATRIX[values]).of("ClusterRoleBinding") if "delegator" in o["metadata"]["name"]]

    assert binding["roleRef"]["name"] == "system:auth-delegator"
    account = template(MATRIX[values]).pod("controlplane")["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]


def test_nothing_cluster_wide_is_made_where_that_is_asked_for() -> None:
    assert {found["kind"] for found in template(MATRIX["nothing cluster-wide"])}.isdisjoint(
        {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    )


def test_listed_namespaces_leave_one_cluster_wide_binding() -> None:
    bindings = template(MATRIX["namespaced"]).of("ClusterRoleBinding")

    assert [binding["roleRef"]["name"] for binding in bindings] == ["system:auth-delegator"]


def test_no_rule_has_a_wildcard() -> None:
    for kind in ("Role", "ClusterRole"):
        for role in template().of(kind):
            assert "*" not in [text for rule in role["rules"] for texts in rule.values() for text in texts]


def test_no_rights_are_made_where_somebody_else_grants_them() -> None:
    left = [o for kind in ("Role", "RoleBinding") for o in template(MATRIX["bare"]).of(kind)]

    assert left == []


def test_people_see_and_change_pools_by_the_roles_they_have() -> None:
    def verbs(role: str) -> set[str]:
        label = f"rbac.authorization.k8s.io/aggregate-to-{role}"
        roles = [o for o in template().of("ClusterRole") if o["metadata"]["labels"].get(label) == "true"]
        return set().union(*(rights(o["rules"]).get(("cachefleet.io", "prefixcachepools"), ()) for o in roles))

    read = {"get", "list", "watch"}
    assert verbs("view") == read
    assert verbs("edit") == verbs("admin") == read | {"create", "update", "patch", "delete", "deletecollection"}
    assert not [o for o in template({"rbac": {"aggregatedRoles": False}}).of("ClusterRole") if "pools" in str(o)[:200]]


def test_people_use_the_admin_api_by_the_roles_they_have() -> None:
    def may(role: str) -> set[tuple[str, str]]:
        label = f"rbac.authorization.k8s.io/aggregate-to-{role}"
        roles = [o for o in template().of("ClusterRole") if o["metadata"]["labels"].get(label) == "true"]
        found = merged(*(rights(o["rules"]) for o in roles))
        return {(verb, resource) for (_, resource), verbs in found.items() for verb in verbs}

    asked = {right for methods in ADMIN_RIGHTS.values() for right in methods.values()}
    read = {right for right in asked if right[0] in {"get", "list", "watch"} and right[1] != AUDIT}
    assert may("view") & asked == read
    assert may("edit") & asked == read | {("update", ROUTING), ("create", FLUSH)}
    assert may("admin") & asked == asked


def test_pods_use_the_accounts_that_have_the_rights() -> None:
    for values in ("defaults", "placed"):
        objects = template(MATRIX[values])
        for part in ("operator", "controlplane"):
            account = objects.pod(part)["serviceAccountName"]
            assert granted(objects, account)
    assert {o["metadata"]["name"] for o in template().of("ServiceAccount")} == {
        "cachefleet-operator",
        "cachefleet-controlplane",
    }
    assert template(MATRIX["placed"]).of("ServiceAccount") == []
