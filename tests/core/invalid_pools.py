"""Pools that are refused, with what is said about each: by our parser, and by an API server with our CRD.

Used by the tests of the parser and by those against a real API server, so that the two stay of one mind.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

VALID: Final[dict[str, Any]] = {
    "apiVersion": "cachefleet.io/v1alpha1",
    "kind": "PrefixCachePool",
    "metadata": {"name": "qwen", "namespace": "default"},
    "spec": {
        "model": {"name": "qwen3-32b", "source": "Qwen/Qwen3-32B", "weightsMiB": 31250},
        "engine": {"maxModelLen": 32768},
        "device": {"memoryMiB": 81920},
    },
}
"""The least that is a pool."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """A merge patch (null removes) that makes VALID invalid, and parts of the two refusals.

    ``server`` is empty where an API server lets the object in, or cannot be given it.
    """

    name: str
    patch: dict[str, Any]
    parser: str
    server: str


def merged(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``base`` under a merge patch (RFC 7386)."""
    made = copy.deepcopy(base)
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        elif isinstance(value, dict):
            made[name] = merged(made.get(name, {}), value)
        else:
            made[name] = value
    return made


def _spec(name: str, parser: str, server: str, **patch: Any) -> Invalid:
    return Invalid(name, {"spec": patch}, parser, server)


_WARM: Final = {"name": "support", "messages": [{"role": "system", "content": "You help."}]}

INVALID: Final[tuple[Invalid, ...]] = (
    Invalid("no spec", {"spec": None}, "spec: missing: must be a mapping", "spec: Required value"),
    Invalid(
        "name no label",
        {"metadata": {"name": "qwen.32b"}},
        'metadata.name: "qwen.32b": must be text of 1 to 52 characters: lowercase letters, digits and',
        "metadata.name",
    ),
    Invalid("name too long", {"metadata": {"name": "q" * 53}}, "metadata.name", "metadata.name"),
    Invalid("name begins with a digit", {"metadata": {"name": "3qwen"}}, "metadata.name", "metadata.name"),
    _spec(
        "control plane no label",
        'spec.controlPlane: "B": must be text of 1 to 63 characters: lowercase letters, digits and',
        "spec.controlPlane",
        controlPlane="B",
    ),
    _spec("control plane too long", "spec.controlPlane", "spec.controlPlane", controlPlane="b" * 64),
    _spec("control plane empty", "spec.controlPlane", "spec.controlPlane", controlPlane=""),
    # Missing, unknown and wrongly typed fields
    _spec("no model name", "spec.model.name: missing", "spec.model.name: Required value", model={"name": None}),
    _spec(
        "no weights", "spec.model.weightsMiB: missing", "spec.model.weightsMiB: Required", model={"weightsMiB": None}
    ),
    _spec("no device", "spec.device: missing", "spec.device: Required value", device=None),
    _spec(
        "no max model len",
        "spec.engine.maxModelLen: missing: must be a whole number from 1",
        "spec.engine.maxModelLen: Required value",
        engine={"maxModelLen": None},
    ),
    _spec(
        "misspelt field",
        'spec.hit.treshold: 0.5: is not a known field; did you mean "threshold"?',
        'unknown field "spec.hit.treshold"',
        hit={"treshold": 0.5},
    ),
    _spec(
        "snake case field",
        'spec.engine.block_size: 16: is not a known field; did you mean "blockSize"?',
        'unknown field "spec.engine.block_size"',
        engine={"block_size": 16},
    ),
    _spec(
        "number for a name",
        "spec.model.name: 4711: must be text of 1 to 128 characters",
        "spec.model.name: Invalid value",
        model={"name": 4711},
    ),
    _spec(
        "boolean for a role",
        "spec.role: true: must be one of Both, Prefill, Decode",
        "spec.role: Invalid value",
        role=True,
    ),
    _spec(
        "text for a number", 'spec.replicas: "4": must be a whole number', "spec.replicas: Invalid value", replicas="4"
    ),
    _spec("fraction for a count", "spec.replicas: 1.5: must be a whole number", "spec.replicas: Invalid", replicas=1.5),
    _spec(
        "quantity for MiB", 'budgetMiB: "1Gi": must be', "budgetMiB: Invalid value", prefixCache={"budgetMiB": "1Gi"}
    ),
    _spec("text for a switch", 'enabled: "yes": must be true or', "enabled: Invalid", prefixCache={"enabled": "yes"}),
    _spec("list for a section", "spec.hit: a list of 0: must be a mapping", "spec.hit: Invalid value", hit=[]),
    _spec("mapping for a list", "extraArgs: a mapping: must be", "extraArgs: Invalid value", engine={"extraArgs": {}}),
    # Outside of what is allowed
    _spec(
        "unknown role", 'spec.role: "decode": must be one of', 'spec.role: Unsupported value: "decode"', role="decode"
    ),
    _spec("unknown dtype", 'dtype: "fp8": must be one of', 'Unsupported value: "fp8"', engine={"dtype": "fp8"}),
    _spec("unknown policy", "preemption.policy", "preemption.policy: Unsupported", preemption={"policy": "Drop"}),
    _spec("unknown isolation", "tenancy.isolation", "tenancy.isolation: Unsupported", tenancy={"isolation": "None"}),
    _spec(
        "share above 1",
        "spec.tenancy.cacheShare.default: 2: must be a number from 0 to 1",
        "spec.tenancy.cacheShare.default: Invalid value: 2",
        tenancy={"cacheShare": {"default": 2}},
    ),
    _spec(
        "share of a tenant twice",
        "spec.tenancy.cacheShare.tenants: a list of 2: must not name a tenant twice",
        'spec.tenancy.cacheShare.tenants[1]: Duplicate value: {"name":"acme"}',
        tenancy={"cacheShare": {"tenants": [{"name": "acme", "share": 0.5}, {"name": "acme", "share": 0.2}]}},
    ),
    _spec(
        "shares where blocks are shared",
        "spec.tenancy.cacheShare: a mapping: must not be set when isolation is Shared: there blocks are of no tenant",
        "must not be set when isolation is Shared: there blocks are of no tenant",
        tenancy={"isolation": "Shared", "cacheShare": {"default": 0.5}},
    ),
    _spec(
        "contracts where blocks are shared",
        "spec.tenancy.contracts: a list of 1: must be empty when isolation is Shared: there blocks are of no tenant",
        "must be empty when isolation is Shared: there blocks are of no tenant",
        tenancy={"isolation": "Shared", "contracts": [{"tenant": "acme", "share": 0.5}]},
    ),
    _spec(
        "contracts for more than there is",
        "spec.tenancy.contracts: a list of 2: must have shares that add up to at most 1",
        "must have shares that add up to at most 1",
        tenancy={"contracts": [{"tenant": "acme", "share": 0.6}, {"tenant": "umbrella", "share": 0.5}]},
    ),
    _spec(
        "a tenant with two contracts",
        "spec.tenancy.contracts: a list of 2: must not name a tenant twice",
        'spec.tenancy.contracts[1]: Duplicate value: {"tenant":"acme"}',
        tenancy={"contracts": [{"tenant": "acme", "share": 0.1}, {"tenant": "acme", "share": 0.2}]},
    ),
    _spec(
        "a tenant with a contract and a share",
        "spec.tenancy.contracts: a list of 1: must not name a tenant of cacheShare.tenants: a contract has its share",
        "must not name a tenant of cacheShare.tenants: a contract has its share",
        tenancy={
            "contracts": [{"tenant": "acme", "share": 0.1}],
            "cacheShare": {"tenants": [{"name": "acme", "share": 0.5}]},
        },
    ),
    _spec(
        "retention beyond a month",
        "spec.tenancy.contracts[0].retentionSeconds: 2592001: must be",
        "spec.tenancy.contracts[0].retentionSeconds: Invalid value: 2592001",
        tenancy={"contracts": [{"tenant": "acme", "share": 0.1, "retentionSeconds": 2_592_001}]},
    ),
    _spec(
        "threshold above 1",
        "spec.hit.threshold: 1.1: must be a number from 0 to 1",
        "spec.hit.threshold: Invalid value: 1.1",
        hit={"threshold": 1.1},
    ),
    _spec(
        "threshold below 0",
        "spec.hit.threshold: -0.1: must be a number from 0 to 1",
        "spec.hit.threshold: Invalid value: -0.1",
        hit={"threshold": -0.1},
    ),
    _spec("threshold no number", 'threshold: "x": must be', "threshold: Invalid value", hit={"threshold": "x"}),
    _spec(
        "objective above 1",
        "hit.objective.ratio: 2: must",
        "hit.objective.ratio: Invalid",
        hit={"objective": {"ratio": 2}},
    ),
    _spec("negative budget", "budgetMiB: -1: must be", "budgetMiB: Invalid value: -1", prefixCache={"budgetMiB": -1}),
    _spec("no memory", "memoryMiB: 0: must be", "memoryMiB: Invalid value: 0", device={"memoryMiB": 0}),
    _spec("negative replicas", "spec.replicas: -1: must be", "spec.replicas: Invalid value: -1", replicas=-1),
    _spec("empty model name", 'spec.model.name: "": must be', "spec.model.name: Invalid value", model={"name": ""}),
    _spec(
        "source like an option", "spec.model.source", "spec.model.source: Invalid value", model={"source": "--port=1"}
    ),
    _spec("source with a space", "spec.model.source", "spec.model.source: Invalid value", model={"source": "a b"}),
    _spec("resource without a domain", "device.resource", "device.resource: Invalid", device={"resource": "gpu"}),
    # Across fields
    _spec(
        "prefill without transfer",
        "spec.engine.kvTransfer: nothing: must name a kv_connector when role is Prefill or Decode",
        "must name a kv_connector when role is Prefill or Decode",
        role="Prefill",
    ),
    _spec(
        "decode without connector",
        "spec.engine.kvTransfer: a mapping: must name a kv_connector when role is Prefill or Decode",
        "must name a kv_connector when role is Prefill or Decode",
        role="Decode",
        engine={"kvTransfer": {"kv_port": 1}},
    ),
    _spec(
        "a connector's role that does not exist",
        'kv_role: "king": must be one of kv_producer, kv_consumer, kv_both',
        'kv_role: Unsupported value: "king"',
        engine={"kvTransfer": {"kv_connector": "X", "kv_role": "king"}},
    ),
    _spec(
        "a Decode pool that produces",
        'kv_role: "kv_producer": must be kv_consumer or kv_both when role is Decode',
        "must be kv_consumer or kv_both when role is Decode",
        role="Decode",
        engine={"kvTransfer": {"kv_connector": "X", "kv_role": "kv_producer"}},
    ),
    _spec(
        "a Prefill pool that consumes",
        'kv_role: "kv_consumer": must be kv_producer or kv_both when role is Prefill',
        "must be kv_producer or kv_both when role is Prefill",
        role="Prefill",
        engine={"kvTransfer": {"kv_connector": "X", "kv_role": "kv_consumer"}},
    ),
    _spec(
        "block size of a CPU",
        "spec.engine.blockSize: 16: must be a multiple of 32 on a CPU",
        "must be a multiple of 32 on a CPU",
        device={"resource": ""},
        engine={"blockSize": 16},
    ),
    _spec(
        "nobody's identity",
        'spec.podIdentity: "cluster": must be one of Fixed, Cluster',
        'spec.podIdentity: Unsupported value: "cluster": supported values: "Fixed", "Cluster"',
        podIdentity="cluster",
    ),
    _spec(
        "no memory of a resource",
        "spec.device.memoryMiB: nothing: must be a whole number from 1 to 16777216, unless claims name a class",
        "must be a whole number from 1 to 16777216, unless claims name a class or a template",
        device={"memoryMiB": None},
    ),
    _spec(
        "no memory of a shared claim",
        "spec.device.memoryMiB: nothing: must be a whole number",
        "must be a whole number from 1 to 16777216, unless claims name a class or a template",
        device={"memoryMiB": None, "claims": {"resourceClaimName": "gpu"}},
    ),
    _spec(
        "claims and a resource",
        "spec.device.claims: a mapping: must not be given together with resource, unless that is empty",
        "must not be given together with resource, unless that is empty (an engine on a CPU): set resource to null",
        device={"resource": "nvidia.com/gpu", "claims": {"className": "gpu"}},
    ),
    _spec(
        "claims of nothing",
        "spec.device.claims.className: nothing: must be given, or resourceClaimTemplateName or resourceClaimName",
        "must be given, or resourceClaimTemplateName or resourceClaimName: exactly one of the three",
        device={"claims": {}},
    ),
    _spec(
        "claims of two",
        "exactly one of the three",
        "exactly one of the three",
        device={"claims": {"resourceClaimTemplateName": "a", "resourceClaimName": "b"}},
    ),
    _spec(
        "count of a template of theirs",
        "spec.device.claims.count: 2: must not be given without className",
        "must not be given without className: the object that is named says how many",
        device={"claims": {"resourceClaimTemplateName": "a", "count": 2}},
    ),
    _spec(
        "selectors of a claim of theirs",
        "spec.device.claims.selectors: a list of 1: must not be given without className",
        "must not be given without className: the object that is named says which",
        device={"claims": {"resourceClaimName": "a", "selectors": ["true"]}},
    ),
    _spec(
        "fewer devices than the engine takes",
        "spec.device.claims.count: 2: must be at least engine.tensorParallelSize times engine.dataParallelSize",
        "must be at least engine.tensorParallelSize times engine.dataParallelSize, its default, and at most 32",
        device={"claims": {"className": "gpu", "count": 2}},
        engine={"tensorParallelSize": 2, "dataParallelSize": 2},
    ),
    _spec(
        "more devices than a claim has",
        "spec.device.claims.count: nothing: must be at least",
        "must be at least engine.tensorParallelSize times engine.dataParallelSize, its default, and at most 32",
        device={"claims": {"className": "gpu"}},
        engine={"tensorParallelSize": 8, "dataParallelSize": 5},
    ),
    _spec(
        "warm prefix without tenants",
        "spec.prefixCache.warmPrefixes: a list of 1: must each name tenants when tenancy.isolation is PerTenant",
        "must each name tenants when tenancy.isolation is PerTenant",
        prefixCache={"warmPrefixes": [_WARM]},
    ),
    _spec(
        "warm prefix twice",
        "spec.prefixCache.warmPrefixes: a list of 2: must not name a prefix twice",
        'spec.prefixCache.warmPrefixes[1]: Duplicate value: {"name":"support"}',
        tenancy={"isolation": "Shared"},
        prefixCache={"warmPrefixes": [_WARM, _WARM]},
    ),
    _spec(
        "warm prefix tenant twice",
        "spec.prefixCache.warmPrefixes[0].tenants: a list of 2: must not name a tenant twice",
        "spec.prefixCache.warmPrefixes[0].tenants[1]: Duplicate value",
        prefixCache={"warmPrefixes": [{**_WARM, "tenants": ["acme", "acme"]}]},
    ),
    _spec(
        "warm prefix of more than a million characters",
        "must together have at most 1000000 characters, and 1 MiB as JSON",
        "must together have at most 1000000 characters, and 1 MiB as JSON",
        tenancy={"isolation": "Shared"},
        prefixCache={"warmPrefixes": [{**_WARM, "messages": [{"role": "system", "content": "x" * 260_000}] * 4}]},
    ),
    _spec(
        "warm prefix of more than a MiB",
        "must together have at most 1000000 characters, and 1 MiB as JSON",
        "",
        tenancy={"isolation": "Shared"},
        prefixCache={"warmPrefixes": [{**_WARM, "messages": [{"role": "system", "content": "\u00e4" * 210_000}] * 3}]},
    ),
    _spec(
        "warm prefix without messages",
        "messages: a list of 0: must be a list of 1 to 64 entries",
        "messages: Invalid value",
        tenancy={"isolation": "Shared"},
        prefixCache={"warmPrefixes": [{**_WARM, "messages": []}]},
    ),
    _spec(
        "rollout that cannot move",
        "spec.rollout.maxSurge: 0: must be at least 1 when maxUnavailable is 0",
        "must be at least 1 when maxUnavailable is 0",
        rollout={"maxSurge": 0},
    ),
    _spec(
        "failure mode of another spelling",
        'spec.inferencePool.failureMode: "failOpen": must be one of FailOpen, FailClose',
        'spec.inferencePool.failureMode: Unsupported value: "failOpen": supported values: "FailOpen", "FailClose"',
        inferencePool={"failureMode": "failOpen"},
    ),
    _spec(
        "an InferencePool that prefills",
        "spec.inferencePool.enabled: true: must be false when role is Prefill",
        "must be false when role is Prefill: gateways send whole requests",
        inferencePool={"enabled": True},
        role="Prefill",
        engine={"kvTransfer": {"kv_connector": "NixlConnector"}},
    ),
    _spec(
        "label twice",
        "spec.inferencePool.labels: a list of 2: must not name a label twice",
        "spec.inferencePool.labels[1]: Duplicate value",
        inferencePool={"labels": [{"name": "app", "value": "a"}, {"name": "app", "value": "b"}]},
    ),
    _spec(
        "label of two prefixes",
        'spec.inferencePool.labels[0].name: "a/b/c": must be text of 1 to 317 characters: a label of Kubernetes',
        "spec.inferencePool.labels[0].name",
        inferencePool={"labels": [{"name": "a/b/c"}]},
    ),
    _spec(
        "label with a space",
        "spec.inferencePool.labels[0].value: text of 3 characters: must be text of 0 to 63 characters",
        "spec.inferencePool.labels[0].value",
        inferencePool={"labels": [{"name": "app", "value": "a b"}]},
    ),
    _spec(
        "labels without end",
        "spec.inferencePool.labels: a list of 9: must be a list of 0 to 8 entries",
        "spec.inferencePool.labels: Too many",
        inferencePool={"labels": [{"name": f"a{number}"} for number in range(9)]},
    ),
    _spec(
        "variable twice",
        "spec.engine.env: a list of 2: must not name a variable twice",
        'spec.engine.env[1]: Duplicate value: {"name":"A"}',
        engine={"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
    ),
    _spec(
        "variable with two sources",
        "spec.engine.env[0].valueFrom: a mapping: must not be given together with value",
        "must not be given together with value",
        engine={"env": [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
    ),
    _spec(
        "variable of ours",
        'spec.engine.env[1].name: "VLLM_DP_SIZE": must not be set: set spec.engine.dataParallelSize',
        "must not be VLLM_DP_SIZE: it follows from the pool, docs/worker.md has a table",
        engine={"env": [{"name": "A", "value": "x"}, {"name": "VLLM_DP_SIZE", "value": "2"}]},
    ),
    _spec(
        "host with a port",
        'spec.engine.allowedMediaDomains[1]: "a.example:80": must be text of 1 to 253 characters: lowercase letters',
        "spec.engine.allowedMediaDomains[1]: Invalid value",
        engine={"allowedMediaDomains": ["a.example", "a.example:80"]},
    ),
    _spec(
        "adapter twice",
        "spec.model.adapters: a list of 2: must not name an adapter twice",
        "spec.model.adapters[1]: Duplicate value",
        model={"adapters": [{"name": "sql", "source": "/a"}, {"name": "sql", "source": "/b"}]},
    ),
    _spec(
        "adapter of the model's name",
        "spec.model.adapters: a list of 1: must not have the model's own name",
        "must not have the model's own name",
        model={"adapters": [{"name": VALID["spec"]["model"]["name"], "source": "/a"}]},
    ),
    _spec(
        "alias of the model's name",
        "spec.model.aliases: a list of 1: must not have the name of the model or of an adapter",
        "must not have the name of the model or of an adapter",
        model={"aliases": [VALID["spec"]["model"]["name"]]},
    ),
    _spec(
        "alias of an adapter's name",
        "spec.model.aliases: a list of 2: must not have the name of the model or of an adapter",
        "must not have the name of the model or of an adapter",
        model={"aliases": ["gpt", "sql"], "adapters": [{"name": "sql", "source": "/a"}]},
    ),
    _spec(
        "alias twice",
        "spec.model.aliases: a list of 2: must not have the name of the model or of an adapter, nor anything twice",
        "spec.model.aliases[1]: Duplicate value",
        model={"aliases": ["gpt", "gpt"]},
    ),
    _spec(
        "alias with a space",
        'spec.model.aliases[0]: "claude *": must be text of 1 to 128 characters: letters, digits and any of . _ :',
        "spec.model.aliases[0]: Invalid value",
        model={"aliases": ["claude *"]},
    ),
    _spec(
        "too many aliases",
        "spec.model.aliases: a list of 33: must be a list of 0 to 32 entries",
        "spec.model.aliases: Too many",
        model={"aliases": [f"a-{number}" for number in range(33)]},
    ),
    _spec(
        "weight of aliases out of range",
        "spec.model.aliasWeight: 1001: must be a whole number from 0 to 1000",
        "spec.model.aliasWeight: Invalid value: 1001",
        model={"aliasWeight": 1001},
    ),
    _spec(
        "comments out of range",
        "spec.admission.keepAliveSeconds: 301: must be a whole number from 0 to 300",
        "spec.admission.keepAliveSeconds: Invalid value: 301",
        admission={"keepAliveSeconds": 301},
    ),
    _spec(
        "revision of a folder",
        'spec.model.adapters[0].revision: "v2": must be empty where source is a path',
        "must be empty where source is a path",
        model={"adapters": [{"name": "sql", "source": "/a", "revision": "v2"}]},
    ),
    *(
        _spec(
            f"image {name}",
            "must name an image as oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:DIGEST",
            "must name an image as oci://REGISTRY/REPOSITORY:TAG or",
            model={"source": source},
        )
        for name, source in (
            ("without tag or digest", "oci://registry.example/acme/qwen"),
            ("without a registry", "oci://qwen:1"),
            ("with a port alone", "oci://registry.example:5000"),
            ("in capitals", "oci://registry.example/Acme/qwen:1"),
            ("with another scheme's spelling", "OCI://registry.example/acme/qwen:1"),
            ("without slashes", "oci:registry.example/acme/qwen:1"),
            ("with a short digest", "oci://registry.example/acme/qwen@sha256:abc"),
            ("with another digest", f"oci://registry.example/acme/qwen@sha512:{64 * 'a'}"),
            ("with a scheme inside", "oci://https://registry.example/acme/qwen:1"),
            ("with a query", "oci://registry.example/acme/qwen:1?x=1"),
            ("with two tags", "oci://registry.example/acme/qwen:1:2"),
            ("with an empty part", "oci://registry.example//qwen:1"),
            ("at an IPv6 address without brackets", "oci://fd77::2/acme/qwen:1"),
            ("at an IPv6 address with half of them", "oci://[fd77::2/acme/qwen:1"),
            ("at a name in brackets", "oci://[registry.example]/acme/qwen:1"),
        )
    ),
    _spec(
        "adapter's image without a tag",
        "spec.model.adapters[0].source: ",
        "must name an image as oci://REGISTRY/REPOSITORY:TAG or",
        model={"adapters": [{"name": "sql", "source": "oci://registry.example/acme/sql"}]},
    ),
    _spec(
        "revision of an image",
        'spec.model.revision: "v2": must be empty where source is an image: name its tag or digest there',
        "must be empty where source is an image",
        model={"source": "oci://registry.example/acme/qwen:1", "revision": "v2"},
    ),
    _spec(
        "folder in a hub's model",
        'spec.model.subPath: "models": must be empty where source is no image (oci://...)',
        "must be empty where source is no image",
        model={"subPath": "models"},
    ),
    *(
        _spec(
            f"folder in an image that is {path!r}",
            f'spec.model.subPath: "{path}": must be text of 0 to 256 characters: names of folders with',
            "spec.model.subPath: Invalid value",
            model={"source": "oci://registry.example/acme/qwen:1", "subPath": path},
        )
        for path in ("/models", "models/", "../etc", "a/../b", ".", "a b", "a//b")
    ),
    _spec(
        "argument of ours",
        "spec.engine.extraArgs: a list of 2: must not have --block_size: set spec.engine.blockSize",
        "must not be --block_size: it follows from the pool",
        engine={"extraArgs": ["--enable-lora", "--block_size=64"]},
    ),
    _spec(
        "key of an argument of ours",
        "must not have --kv-events-config: the agent listens to the events",
        "must not be --kv-events-config.publisher: it follows from the pool",
        engine={"extraArgs": ["--kv-events-config.publisher", "null"]},
    ),
    _spec(
        "short argument of ours",
        "must not have -tp: set spec.engine.tensorParallelSize",
        "must not be -tp: it follows from the pool",
        engine={"extraArgs": ["-tp", "2"]},
    ),
    _spec(
        "argument that no process can be given",
        "extraArgs[1]: ",
        "spec.engine.extraArgs[1]: Invalid value",
        engine={"extraArgs": ["--seed", "1\0"]},
    ),
    _spec(
        "variable that no process can be given",
        "env[0].value: text of 3 characters: must be text of 0 to 32768 characters: any character but NUL",
        "spec.engine.env[0].value: Invalid value",
        engine={"env": [{"name": "A", "value": "a\0b"}]},
    ),
)


@dataclass(frozen=True, slots=True)
class InvalidChange:
    """A merge patch that may not be applied to VALID once it is in."""

    name: str
    patch: dict[str, Any]
    parser: str
    server: str


INVALID_CHANGES: Final[tuple[InvalidChange, ...]] = (
    InvalidChange(
        "another model name",
        {"spec": {"model": {"name": "qwen3-8b"}}},
        'spec.model.name: "qwen3-8b": must not change in the life of a pool',
        "must not change in the life of a pool",
    ),
    InvalidChange(
        "another control plane",
        {"spec": {"controlPlane": "b"}},
        'spec.controlPlane: "b": must not change in the life of a pool',
        "must not change in the life of a pool",
    ),
)

VALID_PATCHES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("a control plane", {"spec": {"controlPlane": "eu-1"}}),
    ("bounds", {"spec": {"hit": {"threshold": 1}, "replicas": 0}}),
    ("media from anywhere", {"spec": {"engine": {"allowedMediaDomains": ["*"]}}}),
    ("image by digest", {"spec": {"engine": {"image": "r.example:5000/vllm:v0.32.0@sha256:" + "0" * 64}}}),
    ("a CPU", {"spec": {"device": {"resource": "", "memoryMiB": 64}, "engine": {"blockSize": 64}}}),
    (
        "devices of a class",
        {
            "spec": {
                "device": {
                    "claims": {"className": "gpu.example.com", "count": 4, "selectors": ["device.driver != ''"]}
                },
                "engine": {"tensorParallelSize": 4},
            }
        },
    ),
    (
        "an InferencePool of its workers and others",
        {"spec": {"inferencePool": {"enabled": True, "failureMode": "FailOpen", "labels": [{"name": "x.y/z"}]}}},
    ),
    ("an identity of the cluster's choice", {"spec": {"podIdentity": "Cluster"}}),
    ("memory that is read", {"spec": {"device": {"memoryMiB": None, "claims": {"className": "gpu"}}}}),
    ("a claim", {"spec": {"device": {"resource": "", "claims": {"resourceClaimName": "cores"}}}}),
    (
        "split roles",
        {"spec": {"role": "Prefill", "engine": {"kvTransfer": {"kv_connector": "NixlConnector", "kv_port": 14579}}}},
    ),
    (
        "a connector's own role",
        {"spec": {"role": "Decode", "engine": {"kvTransfer": {"kv_connector": "X", "kv_role": "kv_both"}}}},
    ),
    ("warm prefixes", {"spec": {"prefixCache": {"warmPrefixes": [{**_WARM, "tenants": ["acme"]}]}}}),
    (
        "environment and arguments",
        {
            "spec": {
                "engine": {
                    "env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                    "extraArgs": ["--max-num-seqs", "8", "--portable"],
                    "allowedMediaDomains": ["images.example.com", "10.0.0.1"],
                }
            }
        },
    ),
    (
        "everything else",
        {
            "spec": {
                "model": {
                    "name": "Qwen/Qwen3-32B",
                    "revision": "9216db5781bf",
                    "kvBytesPerToken": 131072,
                    "chatTemplate": {"configMapKeyRef": {"name": "t", "key": "chat.jinja"}},
                    "hubTokenSecretRef": {"name": "hf-token", "key": "token"},
                },
                "hit": {"threshold": 0.5, "objective": {"ratio": 0.6}},
                "podTemplate": {"spec": {"nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]}},
                "rollout": {"maxSurge": 0, "maxUnavailable": 1},
            }
        },
    ),
)
"""Merge patches under which VALID stays valid."""
