"""Which code is used, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.digest import Digest
from cachefleet_core.native import API, Choice, NativeError, choose, lacking
from tests.core.codes import NATIVE


def test_python_may_be_asked_for() -> None:
    chosen = choose("python")
    assert (chosen.name, chosen.keyer, chosen.digest) == ("python", BlockKeyer, Digest)


@NATIVE
@pytest.mark.parametrize("choice", ["auto", "native"])
def test_native_code_is_used_where_it_is_there(choice: Choice) -> None:
    chosen = choose(choice)
    assert chosen.name == "native"
    assert chosen.reason.startswith("cachefleet_native ")
    assert chosen.keyer is not BlockKeyer
    assert chosen.digest is not Digest
    assert chosen.keyer(b"k", Namespace("c"), 1).keys([1]) == BlockKeyer(b"k", Namespace("c"), 1).keys([1])


def refused(lack: str) -> None:
    """Native code is lacking for this reason, whoever asks."""
    assert lacking() == choose().reason == lack
    assert (choose().name, choose().keyer) == ("python", BlockKeyer)
    with pytest.raises(NativeError) as raised:
        choose("native")
    assert str(raised.value) == lack


def test_without_native_code_the_twin_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cachefleet_native", None)
    refused("cachefleet_native is not installed")


def test_native_code_of_another_interface_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("cachefleet_native")
    monkeypatch.setitem(sys.modules, "cachefleet_native", other)
    refused(f"cachefleet_native has interface None, wanted is {API}")
    vars(other)["API"] = API + 1
    refused(f"cachefleet_native has interface {API + 1}, wanted is {API}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("raise ImportError('libc.so.7: no such file')", "libc.so.7: no such file"),
        ("import nothing_that_has_this_name", "No module named 'nothing_that_has_this_name'"),
        ("raise SystemError('initialization failed')", "initialization failed"),
        ("what = ", "invalid syntax (cachefleet_native.py, line 1)"),
    ],
)
def test_native_code_that_does_not_load_is_left_alone(
    content: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cachefleet_native.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cachefleet_native", raising=False)
    refused(f"cachefleet_native cannot be loaded: {problem}")
