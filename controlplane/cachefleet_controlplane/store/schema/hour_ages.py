"""Which rows by the hour are old enough to be deleted: never on the word of one clock that is far ahead.

A clock that is wrongly ahead by more than what is kept would have all of it deleted, also what other replicas wrote.
PostgreSQL has a clock of its own, which no replica's may be ahead of by more than a day. SQLite has the process's
alone: there time counts as come only once rows were written in HOURS_SEEN hours near it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Connection, cast, extract, func, select

AHEAD_SECONDS: Final = 86_400
"""How far a clock may be ahead of PostgreSQL's, or of the hours that are stored."""
HOURS_SEEN: Final = 24
_HOUR_SECONDS: Final = 3600


def database_seconds(connection: Connection) -> int:
    """The database's time, in Unix seconds: PostgreSQL's own, else that of this machine."""
    postgresql = connection.dialect.name == "postgresql"
    now: Any = extract("epoch", func.clock_timestamp()) if postgresql else func.strftime("%s", "now")
    return int(connection.execute(select(cast(now, BigInteger))).scalar_one())


def credible_now(connection: Connection, hour: Any, now: float, *, hour_seconds: int = 1) -> float:
    """``now`` in Unix seconds, or less where that is too far ahead of the database.

    ``hour`` is the column of a table's hours, in units of ``hour_seconds``.
    """
    if connection.dialect.name == "postgresql":
        return min(now, database_seconds(connection) + AHEAD_SECONDS)
    newest = select(hour).distinct().order_by(hour.desc()).limit(HOURS_SEEN)
    seen = [int(found) for (found,) in connection.execute(newest)]
    return min(now, seen[-1] * hour_seconds + HOURS_SEEN * _HOUR_SECONDS + AHEAD_SECONDS) if seen else now
