"""Archives are the same whenever they are made, and checksums hold."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

from release.__main__ import write_chart
from release.files import pack, repack, write_checksums
from release.version import version

EPOCH: int = 1_700_000_000


def _folder(at: Path, *, changed: float) -> Path:
    """The same content, made at another time by another hand."""
    (at / "blobs").mkdir(parents=True)
    for name in ("index.json", "blobs/b", "blobs/a") if changed > 0 else ("blobs/a", "blobs/b", "index.json"):
        (at / name).write_text(name)
        os.utime(at / name, (changed, changed))
    (at / "index.json").chmod(0o600 if changed > 0 else 0o644)
    return at


def test_the_same_content_makes_the_same_archive(tmp_path: Path) -> None:
    archives = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for number, archive in enumerate(archives):
        pack(_folder(tmp_path / str(number), changed=number * 1e9), archive, EPOCH)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        assert tar.getnames() == ["blobs", "blobs/a", "blobs/b", "index.json"]
        assert {entry.mtime for entry in tar} == {EPOCH}


def test_a_packed_archive_loses_its_times_and_nothing_else(tmp_path: Path) -> None:
    packed = []
    for number in range(2):
        folder, archive = _folder(tmp_path / str(number), changed=number * 1e9), tmp_path / f"{number}.tgz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, "chart")
        repack(archive, EPOCH)
        with tarfile.open(archive) as tar:
            contents = {entry.name: tar.extractfile(entry) for entry in tar if entry.isfile()}
            packed.append({name: file.read() for name, file in contents.items() if file is not None})
    assert packed[0] == packed[1] == {f"chart/{name}": name.encode() for name in ("index.json", "blobs/a", "blobs/b")}


def test_the_chart_is_packaged_the_same_twice_and_helm_reads_it(tmp_path: Path) -> None:
    from tests.chart import helm  # noqa: PLC0415 - builds helm where there is none

    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_chart(tmp_path / name, EPOCH)
        made.append((tmp_path / name / f"cachefleet-{version()}.tgz").read_bytes())
    assert made[0] == made[1]
    packaged = helm.run("template", "cachefleet", str(tmp_path / "first" / f"cachefleet-{version()}.tgz"))
    assert packaged == helm.run("template", "cachefleet", str(helm.CHART))


def test_checksums_hold_and_show_what_was_changed(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tgz"):
        (tmp_path / name).write_text(name)
    write_checksums(tmp_path)
    write_checksums(tmp_path)  # none of itself

    def check() -> subprocess.CompletedProcess[str]:
        command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert check().stdout.splitlines() == ["a.tgz: OK", "b.whl: OK"]
    (tmp_path / "a.tgz").write_text("other")
    assert (check().returncode, check().stdout.splitlines()[0]) == (1, "a.tgz: FAILED")
