"""One control plane for all processes of a test run, kept by a process of its own while any of them uses it.

Who uses it holds a shared lock on a file; the keeper waits for an exclusive one, which it gets when all have let go,
in whichever way they ended. Run as a program, this is the keeper.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from e2e.cluster import rights
from e2e.cluster.api_server import ApiServer, StartError
from e2e.cluster.binaries import Binaries, UnavailableError, find
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import Kube

END_SECONDS: Final = 30.0
_ROOT: Final = Path(__file__).parents[2]


class _Place:
    """The files of a run's folder by which its processes find each other."""

    def __init__(self, folder: Path) -> None:
        self.description = folder / "cluster.json"
        self.log = folder / "cluster.log"
        self._starting, self._users = folder / "cluster.starting", folder / "cluster.users"

    @contextmanager
    def starting(self) -> Iterator[None]:
        """One process at a time asks whether there is a control plane, and starts one."""
        with self._starting.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def used(self) -> IO[str]:
        """Use it, until the file is closed; waits for a keeper that is about to end."""
        return self._locked(fcntl.LOCK_SH)

    def left_alone(self) -> IO[str]:
        """Wait until nobody uses it; nobody begins to until the file is closed."""
        return self._locked(fcntl.LOCK_EX)

    def _locked(self, how: int) -> IO[str]:
        file = self._users.open("w")
        fcntl.flock(file, how)
        return file


@contextmanager
def using(folder: Path, binaries: Binaries) -> Iterator[ApiServer]:
    """The control plane of the run whose folder this is, started by whoever is first."""
    place = _Place(folder)
    with contextlib.ExitStack() as stack:
        with place.starting():
            stack.enter_context(place.used())
            if not place.description.exists():
                _start(place, folder)
        kept = json.loads(place.description.read_text())
        own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="user-", dir=kept["folder"])))
        yield ApiServer.found(binaries, kept["url"], Path(kept["folder"]), own)


def ended(folder: Path) -> None:
    """Wait until the control plane of a run, if there was one, is gone."""
    deadline = time.monotonic() + END_SECONDS
    while _Place(folder).description.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _start(place: _Place, folder: Path) -> None:
    with place.log.open("w") as log:
        command = [sys.executable, "-m", "e2e.cluster.shared", str(folder)]
        # Of nobody's session: whoever is interrupted or ends first, the others go on.
        keeper = subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log, start_new_session=True)
    while not place.description.exists():
        if keeper.poll() is not None:
            raise StartError(f"no control plane:\n{place.log.read_text()[-4000:]}")
        time.sleep(0.05)
    keeper.returncode = 0  # it may outlive this process, and nobody is to warn of that


def main(folder: Path) -> int:
    """Keep a control plane until nobody uses it any more."""
    place = _Place(folder)
    try:
        with contextlib.ExitStack() as after, ControlPlane(find()) as cluster:
            rights.define(Kube(cluster))
            _describe(place, cluster)
            after.enter_context(place.left_alone())
            after.callback(place.description.unlink)
    except (StartError, UnavailableError) as problem:
        sys.exit(f"error: {problem}")
    return 0


def _describe(place: _Place, cluster: ControlPlane) -> None:
    partial = place.description.with_suffix(".partial")
    partial.write_text(json.dumps({"url": cluster.url, "folder": str(cluster.folder)}))
    partial.replace(place.description)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
