"""One real vLLM at a time and process for the tests of this folder; tests with equal options share it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from cachefleet_local.models.tiny_model import tiny_model_path
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm
from e2e.together import engine_name

TEST_SECONDS = 1200
"""A test's own clock includes the engine's start when it is the first to use it."""


def pytest_make_parametrize_id(val: object) -> str | None:
    """By which tests that share an engine are kept together."""
    return engine_name(val) if isinstance(val, VllmOptions) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if Path(__file__).parent in item.path.parents:
        item.add_marker(pytest.mark.engine)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests with an engine of their own last, side by side."""
    items.sort(key=_engine_options)


def _engine_options(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return repr(callspec.params["vllm_server"]) if callspec and "vllm_server" in callspec.params else ""


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The folder of the tiny model: weights, tokenizer, chat template."""
    return tiny_model_path()


@pytest.fixture(scope="session", params=[VllmOptions()])
def vllm_server(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A running vLLM. Other options: ``@pytest.mark.parametrize("vllm_server", [VllmOptions(...)], indirect=True)``.

    Tests with equal options run together and in one process, so each engine starts once, and a process has one.
    """
    options: VllmOptions = request.param
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with running_vllm(options, tiny_model, log) as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its engine logged."""
    report = yield
    server = getattr(item, "funcargs", {}).get("vllm_server")
    if report.failed and server is not None:
        report.sections.append(("vLLM log", server.log_tail()))
    return report
