"""The copier of the plugin, from this checkout into a folder that an isolated Python has on its PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cachefleet_core.engine.first_process import under_first_process
from cachefleet_worker import plugin_install as installer
from cachefleet_worker.plugin_install import InstallError, install, main

LOAD = """
import sys
from importlib.metadata import entry_points
for group in ("vllm.general_plugins", "vllm.endpoint_plugins"):
    (found,) = entry_points(group=group)
    assert found.name == "cachefleet", found
    assert found.load().__module__.startswith("cachefleet_worker.plugin"), found
"""
EVERY_MODULE = """
import sys
from importlib import import_module
from pathlib import Path
import cachefleet_worker.plugin as plugin
folder = Path(plugin.__file__).parent
for file in folder.rglob("*.py"):
    import_module(".".join(["cachefleet_worker.plugin", *file.relative_to(folder).with_suffix("").parts]))
unwanted = {"pydantic", "yaml", "aiohttp", "zmq"} & set(sys.modules)
assert not unwanted, unwanted
print(sys.modules["cachefleet_core"].__file__)
"""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """What the plugin finds where vLLM is installed: of all that is installed here, msgspec alone."""
    folder = tmp_path / "vllms"
    folder.mkdir()
    assert msgspec.__file__
    (folder / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    return folder


def isolated(code: str, *folders: Path) -> str:
    """What Python prints that sees the standard library and these folders, and nothing else."""
    environment = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-S", "-c", code]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_process_of_its_container_is_there_to_be_run(tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path)
    run = under_first_process([sys.executable, "-c", "print('hello')"], str(tmp_path))
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "hello\n"


def test_an_image_without_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match="dumb-init is not installed here"):
        install(tmp_path / "target")


def test_another_python_finds_the_plugin_there(tmp_path: Path, beside: Path) -> None:
    install(tmp_path / "target")
    isolated(LOAD, tmp_path / "target", beside)


def test_the_plugin_needs_only_what_every_vllm_has(tmp_path: Path, beside: Path) -> None:
    install(tmp_path / "target")
    assert isolated(EVERY_MODULE, tmp_path / "target", beside).startswith(str(tmp_path / "target"))


def test_native_code_comes_along_where_it_is_installed(tmp_path: Path, beside: Path) -> None:
    assert install(tmp_path).endswith("cachefleet_core, cachefleet_runtime, cachefleet_worker, cachefleet_native")
    code = "from cachefleet_core.native import available_code; print(available_code().name)"
    assert isolated(code, tmp_path, beside) == "native\n"


def test_without_native_code_the_rest_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "OPTIONAL", ("cachefleet_not_there",))
    assert install(tmp_path).endswith(": cachefleet_core, cachefleet_runtime, cachefleet_worker")


def test_anybody_may_read_it_and_no_caches_are_copied(tmp_path: Path) -> None:
    target = tmp_path / "target"
    before = os.umask(0o077)
    try:
        install(target)
    finally:
        os.umask(before)
    paths = [path for path in target.rglob("*") if path.parent != target or path.is_dir()]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o644}
    assert not [path for path in paths if path.name == "__pycache__"]


def test_run_again_after_a_run_that_was_cut_off(tmp_path: Path, beside: Path) -> None:
    install(tmp_path)
    (tmp_path / "cachefleet_core" / "gone.py").write_text("")
    for half in (".new-cachefleet_worker", ".old-cachefleet_core"):
        (tmp_path / half).mkdir()
        (tmp_path / half / "half.py").write_text("")
    (tmp_path / "cachefleet_worker").rename(tmp_path / ".old-cachefleet_worker")
    install(tmp_path)
    assert not list(tmp_path.glob(".*"))
    assert not (tmp_path / "cachefleet_core" / "gone.py").exists()
    isolated(LOAD, tmp_path, beside)


def test_a_run_cut_off_before_its_end_is_no_plugin_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(installer, "_copied", killed)
    with pytest.raises(KeyboardInterrupt):
        install(tmp_path)
    assert not list(tmp_path.glob("*.dist-info"))


def test_a_target_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "target"
    assert main([str(target)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"cachefleet install: {target} cannot be written: ")
    assert "Not a directory" in said


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--help"]])
def test_it_takes_one_folder(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == "usage: python3 -m cachefleet_worker.plugin_install TARGET\n"


def test_it_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("cachefleet 0.")


def test_packages_without_their_metadata_are_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "DISTRIBUTION", "cachefleet-not-there")
    with pytest.raises(InstallError, match="is not installed here"):
        install(tmp_path)
