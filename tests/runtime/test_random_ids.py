"""Random names: none comes twice, and none is shared with a process that was forked."""

import itertools
import os

import pytest

from cachefleet_runtime.random_ids import RandomIds


def test_names_differ_and_have_their_size() -> None:
    ids = RandomIds(12)
    made = [ids.next() for _ in range(2000)]
    assert len(set(made)) == 2000
    assert {len(one) for one in made} == {24}
    assert all(set(one) <= set("0123456789abcdef") for one in made)


def test_names_grow_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(1_800_000_000)
    monkeypatch.setattr("time.time", lambda: next(now) + 0.5)
    ids = RandomIds()
    made = [ids.next() for _ in range(2000)]
    times = [int(name[:8], 16) for name in made]
    assert times == sorted(times)
    assert len(set(times)) > 1
    assert len({name[8:] for name in made}) == 2000, "the rest is random"


def test_another_process_has_names_of_its_own(monkeypatch: object) -> None:
    ids, reader, writer = RandomIds(), *os.pipe()
    ids.next()
    if (child := os.fork()) == 0:
        os.write(writer, ids.next().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 24).decode() != ids.next()
    os.close(reader)
    os.close(writer)
