"""The profile of the gateway's CPU: which part a stack belongs to, and that the parts add up to the whole."""

import ast
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

import cachefleet_controlplane
import cachefleet_runtime
from bench import profile_parts
from bench.gateway_profile import SHAPES, Profile, rows
from bench.profile_parts import DECISION, INPUT, LEDGER, LOOP, NATIVE, PARTS, RELAY, REST, THREADS, UPSTREAM, part_of
from bench.profile_sampler import Sampler

G, C = "cachefleet_controlplane.gateway", "cachefleet_controlplane"


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        ([(f"{C}.selection.choice", "decide"), (f"{G}.retry.exchange", "Exchange._act")], DECISION),
        ([("dataclasses", "replace"), (f"{G}.know.prompt_lookup", "PromptLookup.complete")], INPUT),
        ([(f"{C}.fleet.fleet", "Fleet.begin"), (f"{G}.retry.exchange", "Exchange._act")], LEDGER),
        ([(f"{C}.fleet.fleet", "Fleet.route")], DECISION),
        ([(f"{G}.send.client", "Upstream.open"), (f"{G}.retry.exchange", "Exchange._pump")], UPSTREAM),
        ([(f"{G}.retry.exchange", "Exchange._pump"), (f"{G}.app", "Gateway._ask")], RELAY),
        ([("contextlib", "contextmanager"), (f"{G}.app", "Gateway.__call__")], REST),
        ([], REST),
    ],
)
def test_the_innermost_frame_that_names_a_part_decides(stack: list[tuple[str, str]], part: str) -> None:
    assert part_of(stack) == part


def functions() -> Iterator[str]:
    for package in (cachefleet_controlplane, cachefleet_runtime):
        folder = Path(next(iter(package.__path__)))
        for file in folder.rglob("*.py"):
            module = ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
            yield f"{module}:<module>"
            yield from (f"{module}:{name}" for name in named(ast.parse(file.read_text())))


def named(node: ast.AST, before: str = "") -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield before + child.name
            yield from named(child, f"{before}{child.name}.")


def test_every_rule_names_something_there_is() -> None:
    """Else what was renamed would be counted elsewhere, unseen."""
    known = list(functions())
    ours = [pattern for pattern, _ in profile_parts._RULES if "cachefleet" in pattern.pattern]
    assert [pattern.pattern for pattern in ours if not any(map(pattern.fullmatch, known))] == []


def test_parts_add_up_to_the_whole() -> None:
    profiles = [
        Profile(
            requests=100 * n,
            main=50_000_000,
            others=7_000_000 * n,
            native=9_000_000,
            parts=Counter({INPUT: 30, DECISION: 50, LOOP: 9}),
        )
        for n in range(1, len(SHAPES) + 1)
    ]
    found = list(rows(profiles))
    assert [row["part"] for row in found] == [*PARTS, "sum"]
    for shape, profile in zip(SHAPES, profiles, strict=True):
        assert sum(row[shape.name] for row in found[:-1]) == pytest.approx(profile.total)
    assert sum(row["event"] for row in found[:-1]) == pytest.approx(found[-1]["event"])
    assert (profiles[0].microseconds(THREADS), profiles[0].microseconds(NATIVE)) == (70.0, 90.0)
    assert profiles[0].uncertain(INPUT) == pytest.approx(2 * 500 * (30 * 59 / 89**3) ** 0.5)


def test_python_has_one_core_however_many_there_are() -> None:
    short = Profile(requests=1000, main=400_000_000, others=100_000_000, native=300_000_000)
    assert [round(short.per_second(cores)) for cores in (1, 2, 4)] == [1250, 2000, 2000]
    long = Profile(requests=1000, main=100_000_000, native=900_000_000)
    assert [round(long.per_second(cores)) for cores in (1, 2, 4)] == [1000, 1111, 3333]
    assert Profile(requests=1000, main=500_000_000).per_second(4) == 2000, "no native threads"


def test_a_sample_is_counted_where_the_callback_is(tmp_path: Path) -> None:
    sampler, file = Sampler(tmp_path / "samples.json"), tmp_path / "samples.json"

    async def callback() -> None:
        signal.raise_signal(signal.SIGPROF)

    before = signal.signal(signal.SIGPROF, sampler.sample)
    try:
        uvloop.run(callback())
    finally:
        signal.signal(signal.SIGPROF, before)
    sampler.tell()
    told = json.loads(file.read_text())
    assert told["parts"] == {REST: 1}
    assert list(told["functions"]) == [f"{REST}\t{__name__}:{callback.__qualname__}"]
    sampler.tell()
    assert json.loads(file.read_text())["parts"] == {}
