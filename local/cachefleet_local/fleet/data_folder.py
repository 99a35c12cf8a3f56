"""The data folder of a local fleet: one owner process at a time, secrets that only their owner can read.

lock              held by the running ``up``; holds its process id
run               link to the sockets and temporary files of its processes; there only while it runs
secrets/          fleet key, tokens, keys of each pool and a token for each agent; made once
pools.yaml        the pool file as it was at the start
policies/         what each pool asks of its workers, as its agents read it
endpoints.json    workers and whether they are ready, for the control plane
fleet.json        addresses of the running fleet, for the command line
logs/             one file for each process, and the one before it
start-times.json  how long each process took to start
controlplane/     the control plane's database

That API keys were made is written outside of it, too: whoever empties the folder does not open the gateway by it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachefleet_core.tenancy import FleetKey, fleet_index_key
from cachefleet_local.fleet.port_promises import is_private

DEFAULT_DATA_DIR: Final = Path(".cachefleet")
_TOKEN_BYTES: Final = 32
_MARKER_DIGITS: Final = 32
_RUN_PREFIX: Final = "cachefleet-"
PRIVATE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700


class DataFolderError(Exception):
    """A data folder that cannot be used; the message says why, for people."""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths in the data folder; ``root`` is absolute."""

    root: Path

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.root / "logs"

    @property
    def controlplane(self) -> Path:
        """Folder of the control plane's database."""
        return self.root / "controlplane"

    @property
    def access_marker(self) -> Path:
        """A file of the user's, outside of this folder: that API keys were made in it, should it be emptied."""
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        name = hashlib.sha256(os.path.realpath(self.root).encode()).hexdigest()[:_MARKER_DIGITS]
        return state / "cachefleet" / "access" / name

    @property
    def pool_file(self) -> Path:
        """The pools as the control plane reads them."""
        return self.root / "pools.yaml"

    @property
    def endpoints_file(self) -> Path:
        """Workers and whether they are ready, for the control plane."""
        return self.root / "endpoints.json"

    @property
    def envoy_file(self) -> Path:
        """The configuration of the Envoy before the fleet."""
        return self.root / "envoy.json"

    @property
    def fleet_file(self) -> Path:
        """Addresses of the running fleet, for the command line; there only while it runs."""
        return self.root / "fleet.json"

    @property
    def run_link(self) -> Path:
        """Link to the folder of the running fleet's sockets and temporary files."""
        return self.root / "run"

    @property
    def start_times_file(self) -> Path:
        """How long each process took to start, for those who wait."""
        return self.root / "start-times.json"

    @property
    def fleet_key_file(self) -> Path:
        """The fleet key, from which the other keys are derived."""
        return self.root / "secrets" / "fleet.key"

    @property
    def admin_token_file(self) -> Path:
        """The token of the admin API."""
        return self.root / "secrets" / "admin.token"

    def worker_key_file(self, pool: str) -> Path:
        """The worker key of the pool "namespace/name"; neither part can hold an underscore."""
        return self.root / "secrets" / f"{pool.replace('/', '_')}.worker-key"

    def index_key_file(self, pool: str) -> Path:
        """The index key of the pool "namespace/name", for its agents and engines."""
        return self.root / "secrets" / f"{pool.replace('/', '_')}.index-key"

    def report_token_file(self, pool: str, worker: str) -> Path:
        """The token with which the agent of one worker of the pool "namespace/name" reports."""
        return self.root / "secrets" / f"{pool.replace('/', '_')}_{worker}.report-token"

    def policy_file(self, pool: str) -> Path:
        """The engine policy of the pool "namespace/name"."""
        return self.root / "policies" / f"{pool.replace('/', '_')}.json"

    def log(self, process: str) -> Path:
        """The log of the process of that name."""
        return self.logs / f"{process.replace('/', '_')}.log"


def open_folder(path: Path) -> DataFolder:
    """The folder, made where it is missing. DataFolderError where it cannot be written."""
    folder = DataFolder(path.absolute())
    try:
        folder.root.mkdir(parents=True, exist_ok=True)
        for private in ("secrets", "policies", "logs", "controlplane"):
            (folder.root / private).mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        ignore = folder.root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise DataFolderError(f"cannot use the data folder {path}: {error.strerror}") from error
    return folder


@contextmanager
def sole_owner(folder: DataFolder) -> Iterator[None]:
    """Hold the folder's lock; DataFolderError with the holder's process id where another process has it.

    The kernel drops the lock with its holder, so a killed owner never leaves a folder locked.
    """
    descriptor = os.open(folder.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        _lock(descriptor, folder)
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: DataFolder) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise DataFolderError(f"cannot lock the data folder {folder.root}: {error.strerror}") from error
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise DataFolderError(
            f"a fleet already runs on the data folder {folder.root} (process {holder}); "
            "stop it first, or use another folder with --data-dir"
        ) from error


@contextmanager
def run_folder(folder: DataFolder) -> Iterator[Path]:
    """A private folder of a short path for sockets and temporary files, removed at the end; for the sole owner.

    What an owner that was killed has left is removed first. DataFolderError where there can be none.
    """
    _remove_run(folder.run_link)
    with tempfile.TemporaryDirectory(prefix=_RUN_PREFIX, ignore_cleanup_errors=True) as run:
        try:
            folder.run_link.symlink_to(run)
        except OSError as error:
            raise DataFolderError(f"cannot make {folder.run_link}: {error.strerror}") from error
        try:
            yield Path(run)
        finally:
            folder.run_link.unlink(missing_ok=True)


def _remove_run(link: Path) -> None:
    """The link, and the folder behind it where that is one of ours."""
    with suppress(OSError):  # there is no link, or nothing behind it
        run = link.readlink()
        link.unlink()
        status = run.lstat()
        ours = run.name.startswith(_RUN_PREFIX) and stat.S_ISDIR(status.st_mode) and is_private(status, os.geteuid())
        if ours:
            shutil.rmtree(run, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class PoolWorkers:
    """A pool's key "namespace/name", its model's name, and the names of its workers."""

    pool: str
    model: str
    workers: tuple[str, ...]


def keep_secrets(folder: DataFolder, pools: Sequence[PoolWorkers]) -> FleetKey:
    """Make every missing secret and keep the others; the fleet key. DataFolderError where that is invalid."""
    text = _kept(folder.fleet_key_file, FleetKey.generate().format())
    try:
        key = FleetKey.parse(text)
    except ValueError as error:
        raise DataFolderError(f"{folder.fleet_key_file}: {error}; remove it to have a new one made") from error
    _kept(folder.admin_token_file, secrets.token_urlsafe(_TOKEN_BYTES))
    for each in pools:
        _keep_pool_secrets(folder, each, key)
    return key


def _keep_pool_secrets(folder: DataFolder, each: PoolWorkers, key: FleetKey) -> None:
    index_key = fleet_index_key(key.index_key, each.pool.partition("/")[0], each.model)
    write_whole(folder.index_key_file(each.pool), _urlsafe(index_key), mode=PRIVATE)
    write_whole(folder.worker_key_file(each.pool), key.worker_key(each.pool), mode=PRIVATE)
    for worker in each.workers:
        write_whole(folder.report_token_file(each.pool, worker), key.report_token(each.pool, worker), mode=PRIVATE)


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file atomically: a reader sees the old text or the new."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def turn_logs(folder: DataFolder) -> None:
    """Rename the previous run's logs; one generation is kept."""
    for log in sorted(folder.logs.glob("*.log")):
        log.replace(log.with_suffix(".log.1"))


def _kept(path: Path, fresh: str) -> str:
    if not path.exists():
        write_whole(path, fresh, mode=PRIVATE)
    path.chmod(PRIVATE)
    return path.read_text().strip()


def _urlsafe(key: bytes) -> str:
    return FleetKey(key).format()
