"""Which code is used, and what is said where the native module cannot be."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.native import API, REMEDY, NativeError, available_code, empty_digest, native_code


def test_native_code_is_used_where_it_is_there() -> None:
    code = available_code()
    assert code == native_code()
    assert code.name == "native"
    assert code.reason.startswith("cachefleet_native ")
    assert code.keyer is not BlockKeyer
    assert code.keyer(b"k", Namespace("c"), 1).keys([1]) == BlockKeyer(b"k", Namespace("c"), 1).keys([1])


def assert_refused(problem: str) -> None:
    """Whoever requires the native module is refused in one sentence; whoever prefers it gets Python's code."""
    with pytest.raises(NativeError) as refusal:
        native_code()
    assert str(refusal.value) == f"{problem}: {REMEDY}"
    with pytest.raises(NativeError, match=re.escape(problem)):
        empty_digest()
    code = available_code()
    assert (code.name, code.keyer) == ("python", BlockKeyer)
    assert code.reason == str(refusal.value)


def test_a_module_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cachefleet_native", None)
    assert_refused("cachefleet_native is not installed")


def test_a_module_of_another_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("cachefleet_native")
    monkeypatch.setitem(sys.modules, "cachefleet_native", other)
    assert_refused(f"cachefleet_native has interface None, and this release needs {API}")
    vars(other)["API"] = API + 1
    assert_refused(f"cachefleet_native has interface {API + 1}, and this release needs {API}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("raise ImportError('libc.so.7: no such file')", "libc.so.7: no such file"),
        ("import nothing_that_has_this_name", "No module named 'nothing_that_has_this_name'"),
        ("raise SystemError('initialization failed')", "initialization failed"),
        ("what = ", "invalid syntax (cachefleet_native.py, line 1)"),
    ],
)
def test_a_module_that_does_not_load(
    content: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cachefleet_native.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cachefleet_native", raising=False)
    assert_refused(f"cachefleet_native cannot be loaded ({problem})")
