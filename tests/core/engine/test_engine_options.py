"""What the engine's own parsers take for an option that follows from the pool is refused in a pool."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_core.engine.engine_arguments import CPU_ENVIRONMENT
from cachefleet_core.pool.managed_arguments import MANAGED_ARGUMENTS, managed_arguments
from e2e.engine.versions import OLDEST, import_path
from tests.core.engine.vllm_parser import read_by_vllm

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

PROGRAM = """
import contextlib, io, json, logging, sys
from importlib import import_module
logging.disable()
for place in ("launchers", "openai"):
    with contextlib.suppress(ModuleNotFoundError):
        make = import_module(f"vllm.entrypoints.{place}.cli_args").make_arg_parser
        break
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make(FlexibleArgumentParser())
managed = set(json.loads(sys.argv[1]))
ours = [action for action in parser._actions if managed & {text.lstrip("-") for text in action.option_strings}]
defaults = {action.dest: action.default for action in parser._actions}
VALUES = ([], ["3"], ["{}"], ["half"], ["sha256"])

def changes(words):
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            read = vars(parser.parse_args(words))
    except (SystemExit, Exception):
        return set()
    return {action.dest for action in ours if read[action.dest] != defaults[action.dest]}

def spellings(option):
    yield from (option[:end] for end in range(2, len(option) + 1))
    if option.startswith("--"):
        yield option.replace("-", "_").replace("__", "--", 1)
        yield f"{option}.topic"
        yield f"{option[:-1]}.topic"
        yield f"-O{option}.topic"

def words_of(option):
    for spelling in dict.fromkeys(spellings(option)):
        for value in VALUES:
            yield [f"{spelling}={value[0]}"] if value else [spelling]
            yield [f"{spelling}={value[0]}", "3"] if spelling.startswith("-O") and value else [spelling, *value]

options = [text for action in ours for text in action.option_strings]
setting = [words for option in options for words in words_of(option) if changes(words)]
others = [text for action in parser._actions if action not in ours for text in action.option_strings]
print("READ", json.dumps({"setting": setting, "others": others, "managed": options}))
"""


@pytest.fixture(scope="module", params=["", pytest.param(OLDEST, marks=pytest.mark.slow)])
def parser(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read_by_vllm(PROGRAM, list(MANAGED_ARGUMENTS), CPU_ENVIRONMENT | import_path(request.param))


def test_every_spelling_that_sets_a_managed_option_is_refused(parser: dict[str, Any]) -> None:
    missed = [words for words in parser["setting"] if not list(managed_arguments(words))]

    assert missed == []
    first = {words[0].partition("=")[0] for words in parser["setting"]}
    assert {"--por", "-tp", "--max-model-le", "--kv-events-config.topic", "--api_key", "--no-enable-prefix-c"} <= first
    assert "-O--kv-events-config.topic" in first


def test_every_short_form_of_a_managed_option_is_known(parser: dict[str, Any]) -> None:
    assert [option for option in parser["managed"] if not list(managed_arguments([option]))] == []


def test_no_other_option_is_refused(parser: dict[str, Any]) -> None:
    assert [option for option in parser["others"] if list(managed_arguments([option]))] == []
