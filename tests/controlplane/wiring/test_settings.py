"""Settings from the environment, and what is said of bad ones."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cachefleet_controlplane.wiring.settings import Settings, SettingsError, load
from cachefleet_core.environment.removed_variables import REMOVED

REQUIRED = {
    "FLEET_KEY_FILE": "key",
    "POOL_FILE": "pool.yaml",
    "ENDPOINTS_FILE": "endpoints.json",
    "ADMIN_TOKEN_FILE": "admin",
}


@pytest.fixture(autouse=True)
def required(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in REQUIRED.items():
        monkeypatch.setenv(f"CACHEFLEET_{name}", value)


def loaded(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(f"CACHEFLEET_{name}", value)
    return load()


def test_defaults() -> None:
    settings = load()
    assert (settings.gateway_port, settings.internal_port, settings.policy) == (8080, 8081, "cacheAware")
    assert settings.url == "sqlite:///.cachefleet/controlplane/controlplane.db"
    assert settings.fleet_key_file == Path("key")


def test_values_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded(monkeypatch, NAMESPACES=" a, b,,", POLICY="roundRobin", DATABASE_URL="sqlite:////x/y.db")
    assert (settings.namespaces, settings.policy, settings.url) == (("a", "b"), "roundRobin", "sqlite:////x/y.db")


def test_renderers_are_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = loaded(monkeypatch, RENDERER_URLS="http://a:8000, https://b/").renderer_urls
    assert urls == ("http://a:8000", "https://b/")
    for wrong in (
        "a:8000",
        "http://",
        "http://a:x",
        "http://a/v1",
        "http://u:p@a",
        "ftp://a",
        "HTTP://a",
        "http://a:",
        "http://ä",
    ):
        with pytest.raises(SettingsError) as told:
            loaded(monkeypatch, RENDERER_URLS=wrong)
        assert told.value.lines[0].startswith("CACHEFLEET_RENDERER_URLS: got")


def test_an_empty_variable_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(monkeypatch, NAMESPACES="", GATEWAY_PORT="").namespaces == ()


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("GATEWAY_PORT", "70000", "CACHEFLEET_GATEWAY_PORT: got '70000', allowed: a whole number from 0 to 65535"),
        (
            *("FILES_URL", "s3://key:secret@bucket"),
            (
                "CACHEFLEET_FILES_URL: allowed: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or "
                "file:///FOLDER, without credentials: these are read from the environment"
            ),
        ),
        ("MAX_ATTEMPTS", "two", "CACHEFLEET_MAX_ATTEMPTS: got 'two', allowed: a whole number from 1 to 16"),
        ("DRAIN_SECONDS", "-1", "CACHEFLEET_DRAIN_SECONDS: got '-1', allowed: a number from 0 to 3600"),
        (
            "POLICY",
            "random",
            "CACHEFLEET_POLICY: got 'random', allowed: one of 'cacheAware', 'leastLoaded', 'roundRobin'",
        ),
        ("KNOWLEDGE", "all", "CACHEFLEET_KNOWLEDGE: got 'all', allowed: one of 'exact', 'approximate', 'load'"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    with pytest.raises(SettingsError) as error:
        loaded(monkeypatch, **{name: value})
    assert error.value.lines == [line]


def test_rules_of_names_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(monkeypatch, MODEL_NAMES='{"qwen": ["a"]}').name_rules == {"qwen": ("a",)}
    with pytest.raises(SettingsError, match=r"^CACHEFLEET_MODEL_NAMES: must be a mapping of model names to lists"):
        loaded(monkeypatch, MODEL_NAMES='{"qwen": "a"}')


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    with pytest.raises(SettingsError, match="CACHEFLEET_DRAIN_SECONDS"):
        loaded(monkeypatch, DRAIN_SECONDS=value)


def test_every_problem_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHEFLEET_FLEET_KEY_FILE")
    with pytest.raises(SettingsError) as error:
        loaded(monkeypatch, MAX_ATTEMPTS="0", LOG_FORMAT="xml")
    assert error.value.lines == [
        "CACHEFLEET_FLEET_KEY_FILE: is required: the path of a file",
        "CACHEFLEET_MAX_ATTEMPTS: got '0', allowed: a whole number from 1 to 16",
        "CACHEFLEET_LOG_FORMAT: got 'xml', allowed: one of 'json', 'text'",
    ]


@pytest.mark.parametrize("name", sorted(set(REQUIRED) - {"FLEET_KEY_FILE"}))
def test_what_files_need_is_required(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(f"CACHEFLEET_{name}")
    with pytest.raises(SettingsError, match=f"CACHEFLEET_{name}: is required when"):
        load()


def test_in_a_cluster_no_files_are_needed_but_the_fleet_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(REQUIRED) - {"FLEET_KEY_FILE"}:
        monkeypatch.delenv(f"CACHEFLEET_{name}")
    assert loaded(monkeypatch, POOL_SOURCE="kubernetes", AUTH="kubernetes").pool_file is None


def test_the_database_s_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded(monkeypatch, DATABASE_URL="postgresql://u:geheim@h/d")
    assert "geheim" not in repr(settings)
    assert "geheim" in settings.url


@pytest.mark.parametrize("url", ["geheim", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x.db?uri=true"])
def test_a_database_url_that_cannot_work_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(SettingsError, match=r"^CACHEFLEET_DATABASE_URL: .*sqlite:///PATH") as error:
        loaded(monkeypatch, DATABASE_URL=url)
    assert "geheim" not in str(error.value)


def test_what_is_no_longer_read_is_no_setting() -> None:
    assert {name.lower() for name in REMOVED["control plane"]} & set(Settings.model_fields) == set()


def test_a_name_that_is_no_setting_is_refused() -> None:
    unknown: dict[str, Any] = {"usage_queue": 16}
    with pytest.raises(ValidationError, match="usage_queue"):
        Settings(**unknown)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load().gateway_port = 1  # type: ignore[misc]


def test_bodies_have_room_for_two_of_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(monkeypatch, REQUEST_MAX_BYTES=str(1 << 30)).buffer_bytes == 8 << 30
    with pytest.raises(SettingsError, match="CACHEFLEET_REQUEST_BUFFER_BYTES: got 2048, allowed: from 2147483648"):
        loaded(monkeypatch, REQUEST_BUFFER_BYTES="2048")


def test_other_control_planes_are_names_with_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (loaded(monkeypatch).control_plane_name, loaded(monkeypatch).others) == ("default", {})
    told = '{"a": "http://a:8080", "b": "http://b:8080/"}'
    named = loaded(monkeypatch, CONTROL_PLANE_NAME="a", CONTROL_PLANES=told)
    assert named.others == {"b": "http://b:8080"}, "its own address is left out"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (
            "CONTROL_PLANE_NAME",
            "A",
            "CACHEFLEET_CONTROL_PLANE_NAME: got 'A', allowed: text of 1 to 63 characters: lower",
        ),
        ("CONTROL_PLANE_NAME", "a" * 64, "CACHEFLEET_CONTROL_PLANE_NAME: got 'a"),
        ("CONTROL_PLANES", "b", "CACHEFLEET_CONTROL_PLANES: is not JSON"),
        ("CONTROL_PLANES", '{"b": "b:80"}', "CACHEFLEET_CONTROL_PLANES: b: 'b:80' must be the address of a gateway"),
    ],
)
def test_bad_names_of_control_planes_are_refused(
    variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        loaded(monkeypatch, **{variable: value})
