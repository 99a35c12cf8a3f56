"""What pages show besides commands: manifests, snippets, changes, queries; drawings are named, and that is all."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import openai
import pytest
import yaml

from cachefleet_core.pool.spec import read_pool
from tests.controlplane.gateway.harness import MODEL, engine, front
from tests.docs.examples import PAGES, ROOT, Block, blocks

DRAWN: Final[Mapping[str, str]] = {
    "README.md OpenAI / Anthropic": "a drawing",
    "docs/architecture.md kubectl / helm": "a drawing",
    "docs/architecture.md local/": "a drawing; import-linter holds the layers",
    "docs/architecture.md wiring/": "a drawing; import-linter holds the layers",
    "docs/budget.md ": "a formula: tests/core/test_budget.py",
    "docs/console.md Console": "what `cachefleet up` prints: tests/local",
    "docs/decisions.md cost =": "a formula: tests/controlplane/routing",
    "docs/decisions.md needed": "a formula: tests/controlplane/routing",
    "docs/decisions.md decision ": "what `cachefleet explain` prints: tests/local/cli/explanation",
    "docs/block-index.md key": "a drawing",
    "docs/reports.md agent": "a drawing",
    "docs/reports.md control plane A": "a drawing",
    "docs/security.md clients": "a drawing",
    "docs/worker.md cachefleet 0.1.0": "a line of the engine's log",
    "docs/worker.md POST /v1": "frames of a held request: tests/worker/plugin",
}
"""Blocks of text that nobody types, by page and first words, with what they are."""
FOLDERS: Final = (
    "core",
    "runtime",
    "controlplane",
    "worker",
    "operator",
    "local",
    "native",
    "tests",
    "e2e",
    "bench",
    "docs",
    "charts",
)
BASE: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: qwen, namespace: serving}
spec:
  model: {name: qwen, source: Qwen/Qwen3-8B, weightsMiB: 16000, kvBytesPerToken: 147456}
  engine: {image: "vllm/vllm-openai:v0.32.0", blockSize: 16, maxModelLen: 4096}
  device: {resource: nvidia.com/gpu, memoryMiB: 81920, activationMiB: 1024, floorMiB: 1024}
"""
OTHER_KINDS: Final = frozenset({"Application", "ClusterRole", "Certificate", "ConfigMap", "Ingress", "Kustomization"})
"""Manifests for controllers of others: that they are YAML is all that can be said here."""


def _is_yaml(block: Block) -> bool:
    return block.language == "yaml" or re.match(r"(apiVersion|modelNames): ?", block.text) is not None


def _is_query(block: Block) -> bool:
    return "rate(" in block.text or block.language == "promql"  # the latter: test_autoscaler_queries


def rest() -> Iterator[Block]:
    return (block for block in blocks() if not block.commands)


def listed(wanted: Any) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in rest() if wanted(block)]


def test_every_other_block_is_of_a_kind_that_is_tried_or_is_named_as_a_drawing() -> None:
    left = [
        f"{block.page} {block.text.strip()}"
        for block in rest()
        if not (_is_yaml(block) or _is_query(block) or block.language in {"python", "diff"})
    ]
    assert [one[:80] for one in left if not one.startswith(tuple(DRAWN))] == []
    assert [begin for begin in DRAWN if not any(one.startswith(begin) for one in left)] == []


@pytest.mark.parametrize("block", listed(_is_yaml))
def test_a_manifest_is_one(block: Block) -> None:
    told = yaml.safe_load(block.text)
    if told.get("kind") in OTHER_KINDS:
        return
    if values := told.keys() & {"modelNames", "autoscaling", "controlPlane"}:
        known = yaml.safe_load((ROOT / "charts/cachefleet/values.yaml").read_text())
        assert values <= known.keys()
        assert told.get("controlPlane", {}).keys() <= known["controlPlane"].keys()
        return
    pool = yaml.safe_load(BASE)
    _merge(pool, told if "spec" in told else {"spec": told})
    read_pool(pool)


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


@cache
def _sources() -> str:
    roots = (ROOT / folder for folder in (*FOLDERS, "tests/reference") if folder not in {"docs", "tests"})
    files = (file for root in roots for kind in ("*.py", "*.rs") for file in root.rglob(kind))
    return "\n".join(file.read_text() for file in files)


@pytest.mark.parametrize("block", listed(lambda block: block.language == "diff"))
def test_a_change_is_of_what_is_there(block: Block) -> None:
    there = {line.strip() for line in _sources().splitlines()}
    kept = [line[1:].strip() for line in block.text.splitlines() if line[:1] in {" ", "-"} and line[1:].strip()]
    assert [line for line in kept if line not in there] == []


@pytest.mark.parametrize("block", listed(_is_query))
def test_a_query_asks_for_metrics_that_there_are(block: Block) -> None:
    for metric in re.findall(r"cachefleet_([a-z_]+?)(?:_total)?\[", block.text):
        assert re.search(rf"[\"_]{metric}\"", _sources()), metric


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # of the official client, at its own WebSocket library
@pytest.mark.parametrize("block", listed(lambda block: block.language == "python"))
async def test_a_snippet_runs(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    if "openai" not in block.text:
        ast.parse(block.text)  # a test of the engine tier
        return
    async with engine() as worker, front([worker]) as gate:
        text = block.text.replace("http://localhost:8080", gate.url).replace('"qwen"', f'"{MODEL}"')
        await asyncio.to_thread(exec, compile(text, str(block), "exec"), {"openai": openai})
        assert len(gate.records) == 2, "two turns"
    assert capsys.readouterr().out.strip()


MADE: Final = "bench/results/"
"""What benchmarks write."""
NAMED: Final = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:py|rs|md|yaml|json|tpl))(?:::\w+)?`")


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "docs").glob("adr/*.md")), ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = [name for name in NAMED.findall(page.read_text()) if "..." not in name and not name.startswith(MADE)]
    assert [name for name in named if not (ROOT / name).exists()] == []


SHORT: Final = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|rs))(?:::\w+)?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_that_a_page_names_in_short_are_there(page: Path) -> None:
    assert [name for name in SHORT.findall(page.read_text()) if name not in _ends_of_paths()] == []


@cache
def _ends_of_paths() -> frozenset[str]:
    """Every source file's name, alone and with some or all of its folders."""
    files = (file.relative_to(ROOT).parts for folder in FOLDERS for file in (ROOT / folder).rglob("*.[pr][ys]"))
    return frozenset("/".join(parts[start:]) for parts in files for start in range(len(parts)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_pages_and_their_sections_lead_somewhere(page: Path) -> None:
    for target, section in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not section or section in _sections(file), f"{target}#{section}"


@cache
def _sections(page: Path) -> frozenset[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads)
