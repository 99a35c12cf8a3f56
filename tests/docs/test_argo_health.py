"""The health script of docs/gitops.md, run by Lua 5.1 as Argo CD runs it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from lupa import lua51

from cachefleet_operator.status.pool_assessment import NOTHING, Verdict
from cachefleet_operator.status.status import status
from tests.docs.examples import ROOT
from tests.operator.status.test_status import INVALID, NOW, VERDICT, WORKERS

KEY = "resource.customizations.health.cachefleet.io_PrefixCachePool"


def script() -> str:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "gitops.md").read_text(), re.DOTALL)
    [config] = [found for found in map(yaml.safe_load, blocks) if found["kind"] == "ConfigMap"]
    return str(config["data"][KEY])


def health(pool: dict[str, Any]) -> tuple[str, str]:
    """What Argo CD shows of a pool: Lua has no libraries there, and ``obj`` is the object."""
    lua = lua51.LuaRuntime(register_eval=False, register_builtins=False)
    lua.execute("os, io, package, require, debug = nil, nil, nil, nil, nil")
    lua.globals().obj = lua.table_from(pool, recursive=True)
    told = lua.execute(script())
    return told.status, told.message


def pool(verdict: Verdict = VERDICT, *, generation: int = 3, **workers: Any) -> dict[str, Any]:
    """A pool with the status that the operator writes."""
    counts = replace(WORKERS, **workers)
    told = status(verdict, counts, NOTHING, name="demo", generation=3, previous={}, now=NOW)
    return {"metadata": {"name": "demo", "generation": generation}, "spec": {}, "status": told}


def edited(found: dict[str, Any], kind: str, state: str) -> dict[str, Any]:
    for condition in found["status"]["conditions"]:
        if condition["type"] == kind:
            condition["status"] = state
    return found


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"metadata": {"generation": 1}}, "Progressing"),
        ({"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}, "Progressing"),
        (pool(generation=4), "Progressing"),
        (pool(ready=1), "Progressing"),
        (edited(pool(ready=1), "Degraded", "True"), "Progressing"),
        (pool(), "Healthy"),
        (pool(wanted=0, total=0, ready=0, updated=0), "Healthy"),
        (edited(pool(), "Degraded", "True"), "Degraded"),
        (pool(INVALID), "Degraded"),
        (edited(pool(ready=1), "Stalled", "True"), "Degraded"),
    ],
)
def test_a_pool_is_as_healthy_as_it_says(found: dict[str, Any], wanted: str) -> None:
    assert health(found)[0] == wanted


def test_it_says_why() -> None:
    assert health(pool(INVALID))[1] == "Invalid: spec.x: is wrong"
    assert health(pool(ready=1))[1] == "RollingOut: 1 of 2 workers ready"
    assert health(pool())[1] == "2 of 2 workers ready"
