"""A real PostgreSQL server for tests, from Debian's programs: a private folder and socket, nothing kept on the disk."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import psutil
import psycopg

START_SECONDS: Final = 60.0
ACCOUNTS: Final = ("postgres", "nobody")
"""Who runs the server where the tests are root's, which it refuses to be run by."""


class NoAccountError(Exception):
    """There is nobody here whom the server could run as."""


def programs() -> Path | None:
    """The folder with ``initdb`` and ``postgres``, the newest where there are several; None where there is none."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: float(each.parts[-3]))
    if installed:
        return installed[-1].parent
    found = shutil.which("initdb")
    return Path(found).parent if found else None


class PostgreSQL:
    """One server; ``stop`` and ``start`` as its administrator would."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._numbers = count(1)
        self._as: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="cachefleet-pg-"))
        if os.geteuid() == 0:
            self._become(_account())
        command = ["initdb", "-D", "data", "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        self._run(*command)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        options = ["-k", str(self.folder), "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", "data", *options],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                **self._as,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self._log()
            assert time.monotonic() < deadline, self._log()
            time.sleep(0.05)

    def stop(self) -> None:
        """At once: clients are cut off."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(START_SECONDS)
            self._process = None

    def kill(self) -> None:
        """SIGKILL to every process of it, as where its host loses power."""
        for each in self._own():
            with suppress(psutil.NoSuchProcess):
                each.kill()
        if self._process is not None:
            self._process.wait(START_SECONDS)
            self._process = None

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Every process of it is stopped, and goes on at the end; connections stay."""
        own = self._own()
        assert own
        for each in own:
            each.suspend()
        try:
            yield
        finally:
            for each in own:
                with suppress(psutil.NoSuchProcess):
                    each.resume()

    def dump(self, url: str) -> Path:
        """A dump of all that is in a ``database()``, as an administrator makes it."""
        file = self.folder / f"{_schema(url)}.dump"
        options = ["-Fc", "-n", _schema(url), "-f", str(file)]
        self._run("pg_dump", "-h", str(self.folder), "-U", "tests", *options, "postgres")
        return file

    def restore(self, file: Path) -> None:
        """Put back what was dumped in place of what is there now, in one transaction."""
        options = ["--clean", "--if-exists", "--single-transaction"]
        self._run("pg_restore", "-h", str(self.folder), "-U", "tests", *options, "-d", "postgres", str(file))

    def database(self) -> str:
        """The URL of a new, empty schema: all that a program sees of a database, and made in no time."""
        name = f"t{next(self._numbers)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"postgresql://tests@/postgres?host={self.folder}&options=-csearch_path%3D{name}"

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(f"host={self.folder} user=tests dbname={database}", autocommit=True)

    def _own(self) -> list[psutil.Process]:
        """Its processes: the server's own and those of its connections."""
        running = [one for one in psutil.process_iter(["cwd", "name"]) if one.info["name"] == "postgres"]
        return [one for one in running if str(self.folder) in (one.info["cwd"] or "")]

    def _become(self, account: pwd.struct_passwd) -> None:
        self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        try:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            subprocess.run(["true"], cwd=self.folder, check=True, **self._as)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(self.folder)
            raise NoAccountError(f"PostgreSQL cannot run as {account.pw_name} here: {error}") from error

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), self.connect("postgres"):
            return True
        return False

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments], cwd=self.folder, capture_output=True, check=False, **self._as
        )
        assert done.returncode == 0, done.stderr.decode()

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def _schema(url: str) -> str:
    return url.rpartition("%3D")[2]


def _account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoAccountError(f"none of {', '.join(ACCOUNTS)} is an account here, and PostgreSQL does not run as root")
