"""Every command that a page shows: run as it is typed where that goes here, else held to what it names.

``curl`` and ``cachefleet`` are run by bash before a whole control plane with fake engines behind it; NAMES says what
stands for the names that a page invents. What is not run is in NOT_RUN with its reason, and no other command may be
left out.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml

from cachefleet_local.__main__ import app
from tests.attacks.target import ADMIN, Target
from tests.controlplane.conftest import migrated_once, postgresql
from tests.controlplane.gateway.converse.talk import keyed
from tests.controlplane.gateway.harness import MODEL, POOL, WORKER_KEY, Front, engine
from tests.controlplane.wiring.test_control_plane import running
from tests.docs.examples import ROOT, Block, blocks, program

__all__ = ["migrated_once", "postgresql"]

HELD_TO_NAMES: Final = ("helm", "make", "python", ".venv/bin/pytest", ".venv/bin/python")
NOT_RUN: Final[Mapping[str, str]] = {
    r"^(KEY=.*)?kubectl (?!cachefleet)": "asks a cluster: e2e/node has one",
    r"kubectl cachefleet ": "asks a cluster; its options are held to the command line",
    r"^cachefleet (up|contexts|workers --context)": "runs until Ctrl-C, or needs a file of contexts; options are held",
    r"^cachefleet doctor certify": "sends 50 chats and waits for an examination; options are held",
    r"https://localhost:80(00|81|82)|localhost:8082": "asks a pod through kubectl port-forward",
    r"^KEY=\$\(cat|^ADMIN=|^TOKEN=|^export ": "sets variables of the commands after it",
    r"prompt_cache_ref": "needs a certified worker that keeps prompts: tests/controlplane/gateway/handles",
    r"\$FINGERPRINTS": "needs fingerprints of a conversation: tests/worker/plugin/conversations",
    r"-F file=@": "needs a recording: tests/controlplane/gateway/apis/test_audio.py",
    r"fleet/snapshot": "a fake engine has no snapshot: e2e/engine/test_plugin_snapshot.py",
    r" ENGINE/": "asks an engine for a route of its development mode: e2e/engine/test_faults.py",
    r"decisions/stream\?": "goes on until Ctrl-C: tests/controlplane/admin",
}
NAMES: Final = (
    (r"(https?://)?(localhost|127\.0\.0\.1):8080", "$GATEWAY"),
    (r"localhost:8000", "$WORKER"),
    (r'"(qwen|embedder|tiny|MODEL)"', f'"{MODEL}"'),
    (r"models/qwen", f"models/{MODEL}"),
    (r"--model qwen", f"--model {MODEL}"),
    (r'"messages": \[\.\.\.\]', '"messages": [{"role": "user", "content": "hello"}]'),
    (r"\[1, 2, 3, \.\.\.\]", "[1, 2, 3]"),
    (r"(--pool |pool=)default/(chat|qwen)", rf"\1{POOL}"),
    (r"\[--pool NAMESPACE/NAME\]|--pool NS/NAME", f"--pool {POOL}"),
    (r'"pool": "default/qwen"', f'"pool": "{POOL}"'),
    (r"explain (ID|DECISION)", "explain $DECISION"),
    (r"cf-\.\.\.", "$API_KEY"),
    (r'If-Match: "\.\.\."', "If-Match: $ETAG"),
    (r"POOL\.yaml", str(ROOT / "examples/cpu-two-workers.yaml")),
    (r"examples/import/", f"{ROOT}/examples/import/"),
    (r'"salts": \["2d1f\.\.\."\], "adapter": "french", ', ""),
    (r"sha256:<64 hex digits>", "$CONTRACT"),
    (r', "cache_salt": "\.\.\."', ""),
    (r"curl localhost|curl 127", "curl http://localhost"),
)
"""What stands for what a page names."""
STATUSES: Final[Mapping[str, set[int]]] = {
    r"^cachefleet flush": {0, 1},  # 1: a worker cannot flush, as the fake one without a plugin
    r"grep": {0, 1},
}
SHELL: Final = """
set -uo pipefail
curl() { command curl -sS --fail-with-body --max-time 60 "$@"; }
"""
SEPARATE: Final = re.compile(r"\s*(?:;|&&|\|)\s*(?=cachefleet |make )|\bxargs ")


def shown() -> Iterator[tuple[Block, str]]:
    return ((block, command) for block in blocks() for command in block.commands)


def reason(command: str) -> str:
    """Why a command is not run; "" where it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), "")


def test_every_command_is_run_or_held_to_what_it_names_or_has_its_reason() -> None:
    ways: dict[str, int] = {}
    for block, command in shown():
        way = reason(command) or (program(command) if program(command) in HELD_TO_NAMES else "run")
        assert way != "run" or program(command) in {"curl", "cachefleet"}, (block, command)
        ways[way] = ways.get(way, 0) + 1
    assert ways["run"] > 40
    assert set(NOT_RUN.values()) <= ways.keys(), "a reason that no command needs"


def typed(command: str) -> Iterator[list[str]]:
    """The words of each ``cachefleet`` in a command line."""
    plain = re.sub(r"\[(--pool [A-Z/]+)\]", r"\1", command)
    for part in SEPARATE.split(plain):
        if (found := re.match(r"\s*(?:[A-Z_]+=\S+ |kubectl )*cachefleet (.*)", part, re.DOTALL)) is not None:
            yield shlex.split(found[1].partition(" | ")[0], comments=True)


KUBECTL_OPTIONS: Final = frozenset({"-n", "--context", "--service-account", "--namespace"})


@pytest.mark.parametrize(
    ("block", "words"),
    [(str(block), words) for block, command in shown() for words in typed(command)],
)
def test_every_cachefleet_command_has_these_options(block: str, words: list[str]) -> None:
    command, context, rest = _command(), None, words
    while hasattr(command, "commands") or hasattr(command, "list_commands"):
        if not rest and getattr(command, "invoke_without_command", False):
            return
        context = command.make_context("cachefleet", [], parent=context, resilient_parsing=True)
        found = command.get_command(context, rest[0]) if rest else None
        assert found is not None, f"{block}: there is no `cachefleet {' '.join(words)}`"
        command, rest = found, rest[1:]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | KUBECTL_OPTIONS
    unknown = [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]
    assert not unknown, f"{block}: {words}"


@cache
def _command() -> Any:
    import typer.main  # noqa: PLC0415 - what typer makes of the application

    return typer.main.get_command(app)


def _lines(*programs: str) -> list[tuple[str, str]]:
    return [(str(block), command) for block, command in shown() if program(command) in programs]


@pytest.mark.parametrize(("block", "command"), _lines("helm"))
def test_helm_sets_values_that_the_chart_has(block: str, command: str) -> None:
    words, values = (
        shlex.split(command, comments=True),
        yaml.safe_load((ROOT / "charts/cachefleet/values.yaml").read_text()),
    )
    for charts in (word for word in words if word.startswith("charts/")):
        assert (ROOT / charts / "Chart.yaml").exists(), block
    for flag, setting in pairwise(words):
        for named in re.sub(r"\{.*?\}", "", setting).split(",") if flag == "--set" else ():
            path = named.partition("=")[0].split(".")
            parent = reduce(lambda node, name: node[name], path[:-1], values)
            assert path[-1] in parent or path[-2] == "labels", f"{block}: {named}"


@pytest.mark.parametrize(("block", "command"), _lines("make"))
def test_make_has_these_targets_and_reads_these_variables(block: str, command: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for part in command.partition("#")[0].split("&&"):
        _, target, *settings = part.split()
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), block
        for name in (one.partition("=")[0] for one in settings):
            assert re.search(rf"\b{name}\b", makefile), f"{block}: {name}"


@pytest.mark.parametrize(("block", "command"), _lines("python", ".venv/bin/python", ".venv/bin/pytest"))
def test_modules_and_tests_are_there(block: str, command: str) -> None:
    words = shlex.split(command.replace("<", "").replace(">", ""), comments=True)
    if "-m" in words:
        assert importlib.util.find_spec(words[words.index("-m") + 1].split(".")[0]), block
    for path in (word for word in words if word.startswith(("tests/", "e2e/"))):
        file, _, test = path.partition("::")
        assert (ROOT / file).exists(), f"{block}: {path}"
        assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{block}: {path}"


@pytest.mark.timeout(170)
async def test_commands_do_what_their_page_says(tmp_path: Path) -> None:
    for tool in ("bash", "curl", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} here")
    async with (
        engine(pooling=True) as worker,
        keyed(worker_key=WORKER_KEY) as plugged,
        running(tmp_path, worker) as plane,
    ):
        target = Target(plane, worker)
        environment, wrong = await _prepared(target, tmp_path, plugged.url), []
        for block, command in sorted(shown(), key=lambda one: one[0].page == "docs/tenants.md"):
            if reason(command) or program(command) not in {"curl", "cachefleet"}:
                continue
            _report(target)
            if "tenants create acme" in command:
                await target.admin("DELETE", "/tenants/acme")
            status, told = await _run(command, environment, tmp_path)
            if status not in next((good for of, good in STATUSES.items() if re.search(of, command)), {0}):
                wrong.append(f"{block}: {command}\n  exit status {status}\n  {told}")
    assert not wrong, "\n".join(wrong)


def _report(target: Target) -> None:
    """What an agent beside the engine would say now."""
    beside: Any = SimpleNamespace(fleet=target.plane.plane.fleet, engines=[target.worker], name=lambda _: "demo-0")
    scheduler, blocks_ = target.worker.worker.scheduler, target.worker.worker.pool
    load: dict[str, Any] = {
        "running": len(scheduler.running),
        "blocks_total": blocks_.num_blocks,
        "blocks_free": blocks_.free,
    }
    Front.report(beside, 0, said={"block_bytes": 32_768}, **load)


async def _prepared(target: Target, folder: Path, worker: str) -> dict[str, str]:
    """The variables, files and requests before that the examples take for granted."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 40}]}
    for name in ("body.json", "request.json"):
        (folder / name).write_text(json.dumps(body))
    trace = {"timestamp": 0, "input_length": 64, "output_length": 4, "hash_ids": [1, 2, 3, 4]}
    (folder / "conversation_trace.jsonl").write_text(f"{json.dumps(trace)}\n" * 3)
    await target.admin("POST", "/tenants", {"name": "acme"})
    _, told, _ = await target.chat()
    async with asyncio.timeout(60):
        while not (await target.admin("GET", "/decisions?limit=1"))[1]["items"]:  # they are written soon after
            await target.plane.get("/healthz")
    internal = target.plane.internal
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GATEWAY": target.plane.gateway,
        "INTERNAL": internal,
        "WORKER": worker,
        "KEY": WORKER_KEY,
        "DECISION": told["x-cachefleet-decision"],
        "CONTRACT": "sha256:" + "0" * 64,
        "CACHEFLEET_ADMIN_URL": internal,
        "CACHEFLEET_ADMIN_TOKEN_FILE": str(folder / "admin.token"),
        "HOME": str(folder),
    }


async def _run(command: str, environment: dict[str, str], folder: Path) -> tuple[int, str]:
    for pattern, stand_in in NAMES:
        command = re.sub(pattern, stand_in, command)
    header = re.search(r'-H "\$TOKEN"', command) is not None
    own = {
        "TOKEN": f"Authorization: Bearer {ADMIN}" if header else ADMIN,
        "ADMIN": environment["INTERNAL"] + ("" if "$ADMIN/admin/v1" in command else "/admin/v1"),
    }
    if "tenants keys create" in command:
        command = f"{command.partition('#')[0]} | tee key.txt"
    if "$API_KEY" in command:
        own["API_KEY"] = next(iter(re.findall(r"cf-[\w-]+", (folder / "key.txt").read_text())), "")
    if "$ETAG" in command:
        command = 'ETAG=$(curl -si -H "$TOKEN" $ADMIN/routing | grep -i ^etag: | tr -d "\\r" | cut -d" " -f2)\n' + (
            command.replace("'If-Match: $ETAG'", '"If-Match: $ETAG"')
        )
    done = await asyncio.create_subprocess_exec(
        *("bash", "-c", SHELL + command),
        env=environment | own,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await done.communicate()
    return done.returncode or 0, told.decode(errors="replace")[-600:]
