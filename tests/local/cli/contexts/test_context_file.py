"""Contexts: kept in a file, chosen by option, environment or ``use``, and told where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefleet_local.cli.contexts.access import AdminAccess, Where, find_access
from cachefleet_local.cli.contexts.cluster_access import Cluster
from cachefleet_local.cli.contexts.context_file import Context, Contexts, context_path, read_contexts, write_contexts
from cachefleet_local.cli_errors import Exit, FailureError
from tests.local.test_command_line import run


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in ("URL", "TOKEN_FILE", "CA_FILE"):
        monkeypatch.delenv(f"CACHEFLEET_ADMIN_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("prod", "local"):
        (tmp_path / f"{name}.token").write_text(name)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def fleet(folder: Path, url: str) -> Path:
    """A data folder as a running fleet has it."""
    (folder / "secrets").mkdir(parents=True)
    (folder / "secrets" / "admin.token").write_text(folder.name)
    (folder / "fleet.json").write_text(f'{{"internal": "{url}"}}')
    return folder


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    cluster = Cluster("/k", "prod-1", "cachefleet-system", "serving/sre")
    items = {"a": Context(data_dir=tmp_path), "b": Context(url="https://b", token_file=Path("/t"), ca_file=Path("/c"))}
    known = Contexts({**items, "c": Context(cluster=cluster), "d": Context(cluster=Cluster())}, "b")
    path = tmp_path / "new" / "config.yaml"
    write_contexts(path, known)
    assert read_contexts(path) == known
    assert [one.name for one in path.parent.iterdir()] == ["config.yaml"]
    assert path.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("contexts: [1]", "no contexts can be read"),
        ("contexts: {a: {url: 5}}", "url: 5 is no text"),
        ("contexts: {a: {adress: x}}", "unknown field 'adress'"),
        ("contexts: {a: {cluster: 3}}", "no contexts can be read"),
        ("- : -", "no contexts can be read"),
        ("text", "no contexts can be read"),
    ],
)
def test_a_broken_file_is_bad_input_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(FailureError, match=said) as raised:
        read_contexts(path)
    assert str(path) in raised.value.lines[0]
    assert raised.value.status is Exit.BAD_INPUT


def test_contexts_are_set_listed_used_and_removed(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def contexts(*words: str) -> tuple[int, str, str]:
        return run("contexts", *words, monkeypatch=monkeypatch, capsys=capsys)

    assert "no contexts" in contexts()[2]
    assert contexts("set", "local", "--data-dir", "x")[0] == 0
    assert contexts("set", "prod", "--url", "https://p", "--token-file", "prod.token")[0] == 0
    assert contexts("set", "kube", "--cluster", "--kube-context", "k1", "--namespace", "n")[0] == 0
    listed = contexts()[1]
    assert contexts("list")[1] == listed
    assert [row.split()[-3:] for row in listed.splitlines()[1:]] == [
        ["kube", "cluster", "k1/n"],
        ["fleet", "of", str(tmp_path / "x")],
        ["prod", "https://p"],
    ]
    assert next(row for row in listed.splitlines() if row.startswith("*")).split()[1] == "local"
    assert contexts("list", "-o", "name")[1].splitlines() == ["kube", "local", "prod"]
    assert contexts("use", "prod") == (0, "prod: in use\n", "")
    assert read_contexts(context_path(environment)).current == "prod"
    assert contexts("remove", "prod") == (0, "prod: removed, and none is in use\n", "")
    assert contexts("use", "local")[0] == 0
    assert contexts("use", "-")[0] == 0
    assert read_contexts(context_path(environment)).current == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "a"), "one of them"),
        (("set", "a", "--url", "http://x", "--cluster"), "one of them"),
        (("set", "a", "--url", "http://x"), "--url needs --token-file"),
        (("use", "nobody"), "there is no context nobody (known: none)"),
        (("remove", "nobody"), "there is no context nobody"),
    ],
)
@pytest.mark.usefixtures("environment")
def test_wrong_words_are_bad_input(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run("contexts", *words, monkeypatch=monkeypatch, capsys=capsys)
    assert status == 2
    assert said in err


def test_options_win_over_the_environment_and_that_over_the_context_in_use(
    environment: dict[str, str], tmp_path: Path
) -> None:
    prod = Context(url="https://prod", token_file=tmp_path / "prod.token")
    laptop = Context(data_dir=fleet(tmp_path / "laptop", "http://laptop"))
    write_contexts(context_path(environment), Contexts({"prod": prod, "laptop": laptop}, "prod"))
    other = fleet(tmp_path / "other", "http://other")
    by_environment = environment | {
        "CACHEFLEET_ADMIN_URL": "http://env/",
        "CACHEFLEET_ADMIN_TOKEN_FILE": str(tmp_path / "local.token"),
    }
    in_use, env = AdminAccess("https://prod", "prod"), AdminAccess("http://env", "local")
    assert find_access(Where(), environment) == in_use
    assert find_access(Where(), environment | {"CACHEFLEET_CONTEXT": "laptop"}) == AdminAccess(
        "http://laptop", "laptop"
    )
    assert find_access(Where(), by_environment) == env
    for given in (environment, by_environment):
        assert find_access(Where(context="prod"), given) == in_use
        assert find_access(Where(data_dir=other), given) == AdminAccess("http://other", "other")
    assert find_access(Where(url="http://u"), by_environment) == AdminAccess("http://u", "local")
    with pytest.raises(FailureError, match="there is no context nobody \\(known: laptop, prod\\)"):
        find_access(Where(context="nobody"), environment)


def test_what_stands_before_a_command_holds_where_the_command_says_nothing_else() -> None:
    outer = Where(context="prod", token_file=Path("t"))
    assert Where().or_else(outer) == outer
    assert Where(url="http://x").or_else(outer) == Where(url="http://x", token_file=Path("t"))
    assert Where(token_file=Path("u")).or_else(outer) == Where(context="prod", token_file=Path("u"))


@pytest.mark.parametrize("text", ["", "two\nlines", "ünicode", "a b"])
def test_a_file_without_a_token_is_not_shown(environment: dict[str, str], tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(FailureError, match="has no admin token") as raised:
        find_access(Where(url="http://x", token_file=tmp_path / "token"), environment)
    assert not text or text not in raised.value.lines[0]
