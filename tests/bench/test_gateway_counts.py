"""What is counted of the gateway: which callbacks are a request's, which thread a dump is of, each call once."""

import asyncio
import dis
import json
import sys
from pathlib import Path

import pytest
import uvloop

from bench.counted_process import BYTECODES, CountedCalls
from bench.gateway_counts import MAIN, NATIVE, STORE, Instructions, by, dump, of_requests, rows

HEAD = "# callgrind format\npid: 1\nthread: {}\npart: 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD.format(1) + "ob=libpython\nsummary: 12\n", (MAIN, 12)),
        (HEAD.format(7) + "ob=cachefleet_native.so\ntotals: 5\n", (NATIVE, 5)),
        (HEAD.format(9) + "ob=/usr/lib/libsqlite3.so.0\nsummary: 3\n", (STORE, 3)),
    ],
)
def test_a_dump_is_of_one_thread(text: str, expected: tuple[str, int]) -> None:
    assert dump(text) == expected


def test_a_file_that_is_no_dump_is_refused() -> None:
    with pytest.raises(ValueError, match="no dump"):
        dump("events: Ir\n")


async def test_a_thread_without_a_dump_has_done_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(*_: object) -> None:
        """As callgrind_control, which has written dumps."""

    counting = Instructions(tmp_path / "instructions")
    monkeypatch.setattr(counting, "_ask", asked)
    for thread, total in ((1, 12), (7, 5), (8, 6)):
        (tmp_path / f"instructions.1-0{thread}").write_text(HEAD.format(thread) + f"summary: {total}\n")
    assert await counting.told() == {MAIN: {MAIN: 12}, NATIVE: {NATIVE: 11}, STORE: {STORE: 0}}


def test_calls_of_timers_and_of_what_not_each_request_has_are_left_out() -> None:
    told = by(10, {"answer": {"answer": 10, "f": 25, "len": 5}, "tick": {"tick": 30}, "write": {"write": 3, "g": 9}})
    assert of_requests(told, {"tick": {"tick": 2.0}}, 0.5) == {"answer": 1, "f": 2.5, "len": 0.5}


def test_instructions_of_timers_are_taken_off() -> None:
    told = {name: {name: 100.0} for name in (MAIN, NATIVE, STORE)}
    idle = {name: {name: each} for name, each in ((MAIN, 20.0), (NATIVE, 0.0), (STORE, 50.0))}
    assert of_requests(told, idle, 2.0) == {MAIN: 60.0, NATIVE: 100.0, STORE: 0.0}


def test_calls_and_bytecodes_are_rows_of_their_own() -> None:
    found = rows({"chat": {BYTECODES + "f": 80, BYTECODES + "g": 10, "f": 2, "len": 3}})
    assert {one["unit"]: one["ours"] for one in found} == {"calls": 5, "bytecodes": 90}


def test_each_call_and_bytecode_counts_once_for_the_callback_that_it_is_of(tmp_path: Path) -> None:
    file = tmp_path / "calls"

    def called() -> int:
        return len("four")

    async def twice() -> None:
        called()
        await asyncio.sleep(0)
        called()

    tracing, profiling, counted = sys.gettrace(), sys.getprofile(), CountedCalls(file)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            counted.tell()
            runner.run(twice())
            counted.tell()
            told = json.loads(file.read_text())
    finally:
        sys.settrace(tracing)
        sys.setprofile(profiling)
    own = next(counts for callback, counts in told.items() if callback.endswith("<locals>.twice"))
    name = f"bench/{Path(__file__).name}:{called.__qualname__}"
    bytecodes = 2 * len(list(dis.get_instructions(called)))
    assert (own[name], own["len"]) == (2, 2)
    assert bytecodes - 4 <= own[BYTECODES + name] <= bytecodes
