"""What an API server is asked, by its audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def flags(folder: Path) -> list[str]:
    """Arguments of an API server that writes its log into ``folder``."""
    policy = folder / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}"]


def requests(folder: Path, *words: str) -> list[dict[str, Any]]:
    """One entry for each finished request whose line has all these words, oldest first.

    A line that is being written is none yet. Words spare the reading of what else a run has asked.
    """
    with (folder / "audit.log").open() as lines:
        return [json.loads(line) for line in lines if all(word in line for word in words) and line.endswith("\n")]
