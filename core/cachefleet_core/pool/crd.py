"""The CustomResourceDefinition of PrefixCachePool, made from its models.

``python -m cachefleet_core.pool.crd`` writes it, for kubectl and for the chart; with ``--check`` it writes nothing and
exits with status 1 where a file differs from the models.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from cachefleet_core.pool.crd_schema import Schema, structural_schema
from cachefleet_core.pool.spec import GROUP, KIND, PLURAL, VERSION, ObjectMeta, PoolSpec, PrefixCachePool
from cachefleet_core.pool.status import UNOBSERVED, PoolStatus

FILE: Final = f"crds/{GROUP}_{PLURAL}.yaml"
CHART_FILE: Final = f"charts/cachefleet/files/{GROUP}_{PLURAL}.yaml"
HEADER: Final = "# Made by `make crds` from core/cachefleet_core/pool/*.py; change it there.\n"

_READY: Final = '.status.conditions[?(@.type=="Ready")]'
COLUMNS: Final = (
    ("Ready", "string", f"{_READY}.status", "Whether the pool serves as asked."),
    ("Model", "string", ".spec.model.name", "Name clients ask for."),
    ("Workers", "integer", ".status.readyReplicas", "Workers that take traffic."),
    ("Budget", "integer", ".status.budget.admittedMiB", "Memory for idle cached blocks on each device, in MiB."),
    ("Hit", "string", ".status.hitRatio.value", "Share of prompt tokens served from the cache."),
    ("Reason", "string", f"{_READY}.reason", "Why the pool is, or is not, ready."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the pool was made."),
)


class _Plain(yaml.SafeDumper):
    """Dumper without aliases, which not every reader of manifests follows."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # PyYAML names it
        return True


def custom_resource_definition() -> dict[str, Any]:
    """The object to apply to a cluster."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["pcp"],
                "categories": ["cachefleet"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def render() -> str:
    """The definition as the text of its file."""
    return HEADER + yaml.dump(custom_resource_definition(), Dumper=_Plain, sort_keys=False, width=120)


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": description}
            for name, kind, path, description in COLUMNS
        ],
    }


def _schema() -> Schema:
    name = structural_schema(ObjectMeta)["properties"]["name"]
    return {
        "type": "object",
        "description": PrefixCachePool.__doc__,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this schema."},
            "kind": {"type": "string", "description": "Kind of the object."},
            "metadata": {
                "type": "object",
                "properties": {"name": {part: name[part] for part in ("type", "maxLength", "pattern")}},
            },
            "spec": structural_schema(PoolSpec),
            # A pool that nobody has seen yet is in progress, not current, for those who wait by kstatus.
            "status": structural_schema(PoolStatus) | {"default": {"observedGeneration": UNOBSERVED}},
        },
    }


def main(arguments: Sequence[str]) -> int:
    """Write or check the files of the definition; returns the exit status."""
    parser = argparse.ArgumentParser(prog="cachefleet_core.pool.crd", description="Write the CRD of PrefixCachePool.")
    parser.add_argument(
        "--output", type=Path, action="append", help=f"file to write, any number (default: {FILE} and {CHART_FILE})"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file would change")
    options = parser.parse_args(arguments)
    files = options.output or [Path(FILE), Path(CHART_FILE)]
    return _check(files) if options.check else _write(files)


def _write(files: Sequence[Path]) -> int:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(render(), encoding="utf-8")
    return 0


def _check(files: Sequence[Path]) -> int:
    wanted = render()
    wrong = [file for file in files if not file.is_file() or file.read_text(encoding="utf-8") != wanted]
    sys.stderr.writelines(f"{file} is not what the models say; run `make crds`\n" for file in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
