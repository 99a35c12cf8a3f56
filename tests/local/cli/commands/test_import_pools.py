"""``cachefleet import``: where it reads and writes, its options, its exit statuses."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cachefleet_core.pool.spec import parse_pools
from tests.local.pools import EXAMPLES
from tests.local.test_command_line import run

FILE = EXAMPLES / "import" / "vllm-runtime.yaml"
SIZES = ("--memory-mib", "46068", "--weights-mib", "15623")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def imported(*arguments: str) -> tuple[int, str, str]:
        return run("import", *arguments, monkeypatch=monkeypatch, capsys=capsys)

    return imported


def test_pools_go_to_standard_output_and_what_became_of_fields_to_standard_error(imported: Run) -> None:
    status, out, err = imported(str(FILE), *SIZES)
    assert status == 0
    (pool,) = parse_pools(out)
    assert (pool.key, pool.spec.device.floor_mib) == ("serving/qwen", 46_068 - int(46_068 * 0.9))
    assert "became          spec.model.maxModelLen" in err
    assert "no counterpart  spec.lmCacheConfig" in err


def test_pools_go_to_a_file_that_check_finds_sound(
    imported: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "pools.yaml"
    assert imported(str(FILE), *SIZES, "-o", str(target))[:2] == (0, "")
    status, out, _ = run("check", str(target), monkeypatch=monkeypatch, capsys=capsys)
    assert (status, out) == (0, "serving/qwen: sound\n")


def test_standard_input_is_read_and_one_namespace_is_given_to_all(
    imported: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(FILE.read_text()))
    status, out, err = imported("-", *SIZES, "-n", "models")
    assert status == 0
    assert parse_pools(out)[0].key == "models/qwen"
    assert "(standard input)" in err


def test_strict_writes_nothing_where_a_field_is_lost(imported: Run, tmp_path: Path) -> None:
    target = tmp_path / "pools.yaml"
    status, out, err = imported(str(FILE), *SIZES, "--strict", "-o", str(target))
    assert (status, out) == (2, "")
    assert "1 field has no counterpart; nothing was written (--strict)" in err
    assert not target.exists()


def test_strict_writes_where_nothing_is_lost(imported: Run, tmp_path: Path) -> None:
    (whole := tmp_path / "whole.yaml").write_text(FILE.read_text().replace("enabled: true, cpu", "enabled: false, cpu"))
    assert imported(str(whole), *SIZES, "--strict")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((str(FILE), "--memory-mib", "46068"), "spec.model.weightsMiB: is told nowhere in VLLMRuntime serving/qwen"),
        ((str(FILE), *SIZES, "--memory-mib", "lots"), "--memory-mib lots: must be a whole number, or POOL=NUMBER"),
        ((str(FILE), *SIZES, "--weights-mib", "other=1"), "is no pool that is made; these are: qwen"),
        ((str(FILE), "--memory-mib", "16000", "--weights-mib", "15623"), "prefixCache.budgetMiB is 1024 MiB"),
        ((str(FILE), str(FILE), *SIZES), "must be unique in namespace serving"),
        (("nowhere.yaml",), "cannot read nowhere.yaml: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    imported: Run, arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = imported(*arguments)
    assert (status, out) == (2, "")
    assert words in err
