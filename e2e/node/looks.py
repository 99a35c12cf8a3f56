"""What tests look at in the cluster, beyond a pool's own state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from e2e.node.pools import Pool
from e2e.node.site import NAMESPACE, Object, Site, until

KILL: Final = """
import contextlib, os, time
if os.fork():
    os._exit(0)
os.setsid()
for number in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
time.sleep(1)
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(name), 9)
"""
"""In a process of its own, a moment later: whoever asked has the answer before all that is in the container ends."""


def one_pod(site: Site, pool: Pool, part: str) -> tuple[str, str]:
    """Namespace and name of a pod of a part: worker, gateway or operator."""
    if part == "worker":
        return pool.namespace, pool.pods()[0]["metadata"]["name"]
    component = {"gateway": "controlplane"}.get(part, part)
    found = site.list("pods", NAMESPACE, selector=f"app.kubernetes.io/component={component}")
    return NAMESPACE, found[0]["metadata"]["name"]


def images_of(pod: Object) -> list[str]:
    """References of the images that a pod has as volumes."""
    return [volume["image"]["reference"] for volume in pod["spec"]["volumes"] if "image" in volume]


def all_up(site: Site, *namespaces: str) -> bool:
    """Whether every Deployment of the release and of these namespaces has all its pods ready, and none too many."""
    found = [each for namespace in (NAMESPACE, *namespaces) for each in site.list("deployments", namespace)]
    counts = [(each["spec"]["replicas"], each["status"]) for each in found]
    return all(status.get("readyReplicas", 0) == status.get("replicas", 0) == wanted for wanted, status in counts)


def kill_engine(site: Site, namespace: str, pod: str) -> None:
    """Kill every process of the engine but the first, which ends for lack of them; the container is started anew."""
    site.kubectl("exec", "-n", namespace, pod, "-c", "engine", "--", "python3", "-c", KILL)


def idle_blocks(pool: Pool) -> list[int]:
    """Idle cached blocks of each worker, as its engine itself counts them."""
    script = (
        "import json, pathlib, ssl, urllib.request as r;"
        "c = ssl.create_default_context(cafile='/etc/cachefleet/tls/ca.crt');"
        "key = pathlib.Path('/etc/cachefleet/keys/worker.key').read_text().strip();"
        "q = r.Request('https://localhost:8000/v1/fleet/stats', headers={'Authorization': 'Bearer ' + key});"
        "print(json.load(r.urlopen(q, context=c))['ranks']['0']['blocks_idle'])"
    )
    names = [pod["metadata"]["name"] for pod in pool.pods()]
    exec_ = ["exec", "-n", pool.namespace, "-c", "agent"]
    return [int(pool.site.kubectl(*exec_, name, "--", "python3", "-c", script)) for name in names]


@contextmanager
def small_budget(pool: Pool) -> Iterator[None]:
    """Within, a worker keeps 64 idle blocks at most: 1 MiB of 32 tokens of 512 bytes; at the end the example's 256."""
    pool.patch({"prefixCache": {"budgetMiB": 1}})
    try:
        until(lambda: max(idle_blocks(pool)) <= 64, seconds=180)
        yield
    finally:
        pool.patch({"prefixCache": {"budgetMiB": 4}})


def cache_values(site: Site) -> dict[str, float]:
    """What the control plane takes each worker's cache to be worth."""
    script = (
        "import ssl, urllib.request as r; c = ssl.create_default_context(cafile='/etc/cachefleet-tls/ca.crt');"
        "print(r.urlopen('https://localhost:8081/metrics', context=c).read().decode())"
    )
    inside = ["deploy/cachefleet-controlplane", "--", "python3", "-c", script]
    lines = site.kubectl("exec", "-n", NAMESPACE, *inside).splitlines()
    found = (re.match(r'cachefleet_worker_cache_value\{.*worker="([^"]+)"\} (\S+)', line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


def writes(site: Site) -> list[str]:
    """What the product's own accounts wrote, Leases and reviews left out, oldest first."""
    assert site.requests is not None
    return [line for line in map(_written, site.requests()) if line]


def _written(request: Object) -> str:
    user = request["user"].get("username", "")
    about = request.get("objectRef") or {}
    quiet = request["verb"] in {"get", "list", "watch"} or about.get("resource") in {
        *("leases", "tokenreviews", "subjectaccessreviews"),
    }
    if quiet or not user.startswith(f"system:serviceaccount:{NAMESPACE}:"):
        return ""
    return f"{request['verb']} {about['resource']}/{about.get('subresource', '')} {about.get('name', '')}"


def used(requests: Iterable[Object], user: str) -> dict[str, set[str]]:
    """Verbs by resource that a user asked for, refused ones too; a patch that made its object counts as both."""
    found: dict[str, set[str]] = {}
    for request in requests:
        about = request.get("objectRef") or {}
        if request["user"].get("username") != user or "resource" not in about:
            continue
        part = f"/{about['subresource']}" if "subresource" in about else ""
        verbs = found.setdefault(f"{about.get('apiGroup', '')}/{about['resource']}{part}", set())
        verbs.add(request["verb"])
        if request["verb"] == "patch" and (request.get("responseStatus") or {}).get("code") == 201:
            verbs.add("create")
    return found


def granted(site: Site, account: str) -> dict[str, set[str]]:
    """Verbs by resource of every role that is bound to an account of the release."""
    found: dict[str, set[str]] = {}
    for kind, namespace in (("clusterrolebindings", ""), ("rolebindings", "")):
        for binding in site.list(kind, namespace):
            subjects = [subject["name"] for subject in binding.get("subjects") or ()]
            if account in subjects:
                _add_rules(site, binding, found)
    return found


def _add_rules(site: Site, binding: Object, found: dict[str, set[str]]) -> None:
    role = binding["roleRef"]
    where = binding["metadata"].get("namespace", NAMESPACE)
    for rule in site.get(role["kind"].lower(), role["name"], where)["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault(f"{group}/{resource}", set()).update(rule["verbs"])
