"""Values that people may set, each of which turns on another part of the templates."""

from __future__ import annotations

from typing import Final

from tests.chart.helm import Values

MATRIX: Final[dict[str, Values]] = {
    "defaults": {},
    "namespaced": {"namespaces": ["serving", "batch"]},
    "namespaced with its own": {"namespaces": ["cachefleet-system"]},
    "nothing cluster-wide": {
        "namespaces": ["serving"],
        "crds": {"install": False},
        "rbac": {"aggregatedRoles": False},
        "controlPlane": {"auth": {"delegate": False}},
    },
    "guarded": {"admissionPolicy": {"enabled": True, "exemptUsers": ["ops"], "exemptGroups": ["oncall"]}},
    "guarded, namespaced": {"admissionPolicy": {"enabled": True}, "namespaces": ["serving"]},
    "named": {"modelNames": {"qwen": ["team-a", "team-b"], "*": ["platform"], "nobody/s": []}},
    "left to the cluster": {"podIdentity": "cluster"},
    "two families": {"ipFamilyPolicy": "PreferDualStack"},
    "single": {"operator": {"replicas": 1}, "controlPlane": {"replicas": 1}},
    "autoscaled": {"controlPlane": {"replicas": None}},
    "pools by HPA": {
        "autoscaling": {
            "kind": "HorizontalPodAutoscaler",
            "pools": [{"namespace": "serving", "name": "qwen", "maxWorkers": 4}],
        }
    },
    "persistent": {"controlPlane": {"replicas": 1, "persistence": {"enabled": True, "storageClass": "fast"}}},
    "claimed": {"controlPlane": {"replicas": 1, "persistence": {"enabled": True, "existingClaim": "mine"}}},
    "database": {"controlPlane": {"replicas": 3, "databaseUrlSecretRef": {"name": "db", "key": "uri"}}},
    "monitored": {
        "monitoring": {
            "monitors": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Cachefleet"}},
        }
    },
    "closed": {
        "networkPolicy": {
            "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}],
            "internalFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "egress": {
                "enabled": True,
                "apiServer": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
                "extra": [{"ports": [{"port": 5432, "protocol": "TCP"}]}],
            },
        }
    },
    "picker": {
        "controlPlane": {"picker": {"enabled": True}},
        "networkPolicy": {
            "pickerFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]
        },
        "tls": {"enabled": False},
    },
    "inference pools": {
        "controlPlane": {"picker": {"enabled": True, "inferencePools": True}},
        "admissionPolicy": {"enabled": True},
    },
    "open": {"networkPolicy": {"enabled": False}, "podDisruptionBudgets": {"enabled": False}},
    "workers open": {"networkPolicy": {"workers": False}},
    "unwatched": {"networkPolicy": {"prometheusFrom": []}},
    "private registry": {
        "image": {
            "repository": "registry.example:5000/team/cachefleet",
            "digest": "sha256:" + "0" * 64,
            "pullSecrets": ["registry"],
            "pullPolicy": "Always",
        }
    },
    "load balanced": {
        "controlPlane": {
            "gateway": {
                "service": {
                    "type": "LoadBalancer",
                    "port": 80,
                    "nodePort": 30080,
                    "loadBalancerClass": "example.com/internal",
                    "loadBalancerSourceRanges": ["10.0.0.0/8"],
                    "annotations": {"example.com/scheme": "internal"},
                }
            }
        }
    },
    "placed": {
        "commonLabels": {"team": "inference"},
        **{
            part: {
                "priorityClassName": "important",
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
                "affinity": {"nodeAffinity": {}},
                "topologySpread": False,
                "podLabels": {"cost": "shared"},
                "podAnnotations": {"example.com/note": "1"},
                "serviceAccount": {"create": False, "name": f"my-{part.lower()}"},
                "extraEnv": [{"name": "CACHEFLEET_LOG_LEVEL", "value": "DEBUG"}],
            }
            for part in ("operator", "controlPlane")
        },
    },
    "tuned": {
        "log": {"level": "WARNING", "format": "text"},
        "operator": {
            "workers": 8,
            "resyncSeconds": 86400,
            "sharedMemoryMiB": 1048576,
            "workerStartSeconds": 7200,
            "workerDrainSeconds": 600,
            "workerShutdownSeconds": 0,
        },
        "controlPlane": {
            "policy": "leastLoaded",
            "knowledge": "load",
            "apiKeys": "required",
            "renderers": ["http://renderer-0:8000", "http://renderer-1:8000"],
            "queueRequests": 0,
            "tracing": {"endpoint": "http://collector:4318", "ratio": 0.5},
            "databaseUrlSecretRef": {"name": "db"},
            "batches": {"enabled": True, "filesUrl": "s3://bucket/files", "filesSecretName": "files"},
            "gateway": {"allowedOrigins": ["https://app.example", "http://localhost:3000"]},
            "requestMaxBytes": 1073741824,
            "withdrawSeconds": 0,
            "drainSeconds": 3600,
            "extraVolumes": [{"name": "authority", "configMap": {"name": "authority"}}],
            "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/authority"}],
        },
        "tests": {"apiKeySecretRef": {"name": "tenant"}},
    },
    "renamed": {"fullnameOverride": "fleet"},
    "plain": {"tls": {"enabled": False}, "monitoring": {"monitors": {"enabled": True}}},
    "certificates of others": {
        "tls": {"existing": {"controlPlaneSecret": "plane-tls", "workerSecret": "workers-tls"}},
        "monitoring": {"monitors": {"enabled": True}},
    },
    "certificates of others, namespaced": {
        "namespaces": ["serving"],
        "tls": {"existing": {"controlPlaneSecret": "plane-tls"}},
    },
    "https": {"controlPlane": {"gateway": {"tls": {"secretName": "llm-tls"}}}},
    "bare": {"rbac": {"create": False}, "crds": {"keep": False}, "tests": {"enabled": False}},
}
