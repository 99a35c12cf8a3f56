"""The hook in the other versions of vLLM that the plugin is tried on."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachefleet_worker.plugin.tokens.renderer import ENCODES, ENCODES_ELSEWHERE, RENDERS, RENDERS_ASYNC
from e2e.engine.versions import OTHERS, root
from tests.worker.plugin.tokens.renderers import write_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(420)]


@pytest.mark.parametrize("version", OTHERS)
def test_other_versions_have_methods_of_the_same_shape(version: str) -> None:
    """By their source, since each import takes ten seconds."""
    source = (folder_or_skip(version) / "vllm" / "renderers" / "base.py").read_text()
    (found,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == "BaseRenderer")
    assert isinstance(found, ast.ClassDef)
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for name in (ENCODES, "_wants_offsets"):
        assert [argument.arg for argument in methods[name].args.args] == ["self", "prompt", "params"]
    for name in (*RENDERS, *RENDERS_ASYNC):
        assert "prompt_extras" in [argument.arg for argument in methods[name].args.kwonlyargs]
        assert isinstance(methods[name], ast.AsyncFunctionDef) == (name in RENDERS_ASYNC)
    assert f"self.{ENCODES_ELSEWHERE} = make_async(" in source


@pytest.mark.slow
@pytest.mark.parametrize("version", OTHERS)
def test_other_versions_give_the_same_ids(version: str, tmp_path: Path) -> None:
    folder = folder_or_skip(version)
    code = "import sys; from tests.worker.plugin.tokens.renderers import main; main(sys.argv[1])"
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[4]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(write_model(tmp_path))],
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"vllm {version} memoised" in done.stdout


def folder_or_skip(version: str) -> Path:
    folder = root() / version
    if not (folder / "vllm" / "__init__.py").exists():
        pytest.skip(f"vLLM {version} is not below {root()}; python -m e2e.engine.versions makes it")
    return folder
