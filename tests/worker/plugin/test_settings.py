from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from cachefleet_core.environment.removed_variables import REMOVED
from cachefleet_worker.plugin.settings import FEATURES, READERS, PluginSettings, SettingsError


def read(**environment: str) -> PluginSettings:
    return PluginSettings.read({f"CACHEFLEET_{name}": value for name, value in environment.items()})


def test_an_empty_environment_gives_the_defaults() -> None:
    assert PluginSettings.read({}) == PluginSettings() == read(WORKER_KEY_FILE="", TOKENS_CACHE_BYTES="")
    assert PluginSettings().worker_key() == PluginSettings().index_key() == b""


def test_every_setting_can_be_given() -> None:
    given = read(
        WORKER_KEY_FILE="/k",
        INDEX_KEY_FILE="/i",
        POLICY_FILE="/p",
        PLUGIN_OFF=" gate, tokens,",
        MAX_BODY_BYTES="1000",
        TOKENS_CACHE_BYTES="5e6",
        CONVERSATIONS_BYTES="7",
        CONVERSATIONS_SECONDS="7",
    )
    assert given.worker_key_file == Path("/k")
    assert given.plugin_off == {"gate", "tokens"}
    assert (given.tokens_cache_bytes, given.conversations_seconds) == (5_000_000, 7.0)
    defaults = PluginSettings()
    assert [name for name in READERS if getattr(given, name) == getattr(defaults, name)] == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PLUGIN_OFF", "gaet", "CACHEFLEET_PLUGIN_OFF: unknown gaet; known are adapters, answer_replay,"),
        ("CONVERSATIONS_SECONDS", "0", "CACHEFLEET_CONVERSATIONS_SECONDS: must be a number above 0, got '0'"),
        ("MAX_BODY_BYTES", "inf", "must be a number above 0"),
        ("TOKENS_CACHE_BYTES", "nan", "must be a number above 0"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_and_turns_all_off(
    name: str, value: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        read(**{name: value})
    settings = PluginSettings.from_environment({f"CACHEFLEET_{name}": value, "CACHEFLEET_WORKER_KEY_FILE": "/k"})
    kept = PluginSettings(plugin_off=FEATURES - {"guard"}, worker_key_file=Path("/k"))
    assert settings == kept, "no half of what was meant, and no door that it opens"
    assert f"{message.partition(':')[0]}" in caplog.text
    assert "every feature is off" in caplog.text


def test_what_is_no_longer_read_is_told_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    removed = {f"CACHEFLEET_{name}": "7" for name in REMOVED["plugin"]}
    assert PluginSettings.from_environment(removed) == PluginSettings()
    assert sorted(record.getMessage().split()[1] for record in caplog.records) == sorted(removed)


def test_keys_are_read_from_their_files(tmp_path: Path) -> None:
    worker, index = tmp_path / "worker", tmp_path / "index"
    worker.write_text("secret\n")
    index.write_text(base64.urlsafe_b64encode(bytes(range(224, 256))).decode() + "\n")
    settings = PluginSettings(worker_key_file=worker, index_key_file=index)
    assert settings.worker_key() == b"secret"
    assert settings.index_key() == bytes(range(224, 256))


@pytest.mark.parametrize(("text", "problem"), [("", "got 0"), ("AAAA", "got 3"), ("!" * 44, "base64"), ("é", "base64")])
def test_an_index_key_that_is_none_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "index").write_text(text)
    with pytest.raises(ValueError, match=problem):
        PluginSettings(index_key_file=tmp_path / "index").index_key()
    with pytest.raises(OSError, match="missing"):
        PluginSettings(index_key_file=tmp_path / "missing").index_key()
