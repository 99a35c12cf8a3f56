"""Random names: none comes twice, and none is shared with a process that was forked."""

import os

from cachefleet_runtime.random_ids import RandomIds


def test_names_differ_and_have_their_size() -> None:
    ids = RandomIds(12)
    made = [ids.next() for _ in range(2000)]
    assert len(set(made)) == 2000
    assert {len(one) for one in made} == {24}
    assert all(set(one) <= set("0123456789abcdef") for one in made)


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
