"""Pages over records that wait and records that are stored, while they go from the one to the other."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.store.newest_first import newest_first


@dataclass(frozen=True)
class Record:
    """A record by its number."""

    number: int

    @property
    def id(self) -> str:
        return f"r{self.number}"


@given(
    stored=st.integers(0, 6),
    waiting=st.integers(0, 6),
    written=st.integers(0, 6),
    limit=st.integers(1, 13),
    odd=st.booleans(),
    data=st.data(),
)
async def test_pages_join_to_the_whole_while_records_are_stored(
    *, stored: int, waiting: int, written: int, limit: int, odd: bool, data: st.DataObject
) -> None:
    records = [Record(number) for number in range(stored + waiting)]
    kept = records[:stored]
    queue = {record.id: record for record in records[stored:]}
    wanted = [record for record in reversed(records) if not odd or record.number % 2]

    async def read(most: int, before: str | None) -> list[Record]:
        for record in list(queue.values())[: data.draw(st.integers(0, written))]:
            kept.append(queue.pop(record.id))
        older = kept if before is None else kept[: [one.id for one in kept].index(before)]
        return [record for record in reversed(older) if not odd or record.number % 2][:most]

    seen: list[Record] = []
    while True:
        before = seen[-1].id if seen else None
        page = await newest_first(
            queue, lambda record: not odd or bool(record.number % 2), read, limit=limit, before=before, whole=True
        )
        seen += page
        if len(page) < limit:
            break
    assert seen == wanted
