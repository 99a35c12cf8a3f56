"""The programs of a Kubernetes cluster: found where they are already, else built once from pinned Go modules.

Looked for in this order: the folder that KUBEBUILDER_ASSETS names, the cache folder of the pinned versions, a Go
build into that folder. Those of a node are no part of KUBEBUILDER_ASSETS: for them only the cache and the build are
left. Run as a program, it makes sure that all of them are there.

CACHEFLEET_KUBERNETES=1.31 has the control plane of an older Kubernetes in place of the pinned one, and of
KUBEBUILDER_ASSETS.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.cluster import keda_source

MODULES = Path(__file__).parent / "modules"
PROGRESS_SECONDS = 10.0
WAIT_SECONDS = 0.5
_DIGEST_DIGITS = 12


class UnavailableError(RuntimeError):
    """A program is neither there nor can be built; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its file name, the module that pins it (a folder of ``modules``) and its Go package."""

    name: str
    module: str
    package: str
    release: str = ""
    """A version other than the one that its module pins."""


PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
)
NODE_PROGRAMS = (
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    Program("kube-proxy", "kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    Program("coredns", "coredns", "."),
    Program("pause", "pause", "."),
    Program("containerd", "containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    Program("containerd-shim-runc-v2", "containerd", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
    Program("ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr"),
    Program("devicedriver", "devicedriver", "."),
)
OLDER = {
    "1.31": "v1.31.13",
    "1.32": "v1.32.12",
    "1.33": "v1.33.13",
    "1.34": "v1.34.4",
    "1.35": "v1.35.4",
    "1.36": "v1.36.3",
}
"""Versions of Kubernetes before the pinned one whose API servers the operator is tried on."""
_OF_A_VERSION = frozenset({"kube-apiserver", "kube-controller-manager"})
HELM = Program("helm", "helm", "helm.sh/helm/v3/cmd/helm")
KSTATUS = Program("kstatus", "kstatus", ".")
"""Says of an object what kstatus does, by which Flux waits."""
SYFT = Program("syft", "syft", "github.com/anchore/syft/cmd/syft")
"""Lists the parts of an image for a release."""
VERSITYGW = Program("versitygw", "versitygw", "github.com/versity/versitygw/cmd/versitygw")
"""An S3 server over a folder."""
KEDA = tuple(Program(name, "keda", f"./cmd/{name}", release="v2.21.0") for name in ("operator", "adapter"))
"""KEDA's operator and its adapter of external metrics, with no scaler but Prometheus'."""
_PINNED = {
    "containerd": "github.com/containerd/containerd/v2",
    "coredns": "github.com/coredns/coredns",
    "devicedriver": "k8s.io/dynamic-resource-allocation",
    "etcd": "go.etcd.io/etcd/server/v3",
    "helm": "helm.sh/helm/v3",
    "keda": "github.com/kedacore/keda/v2",
    "kstatus": "sigs.k8s.io/cli-utils",
    "kubernetes": "k8s.io/kubernetes",
    "syft": "github.com/anchore/syft",
    "versitygw": "github.com/versity/versitygw",
}


@dataclass(frozen=True, slots=True)
class Binaries:
    """Paths of the programs; the last two may be missing where KUBEBUILDER_ASSETS has only the first."""

    etcd: Path
    apiserver: Path
    controller_manager: Path | None
    kubectl: Path | None


def find() -> Binaries:
    """All programs, built where they are not there yet (minutes, once). UnavailableError where that cannot be."""
    assets, older = os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("CACHEFLEET_KUBERNETES", "")
    if assets and not older:
        return _assets(Path(assets))
    paths = ensured(_asked(older))
    return Binaries(paths["etcd"], paths["kube-apiserver"], paths["kube-controller-manager"], paths["kubectl"])


def minor() -> int:
    """The minor version of the API servers that tests ask: 37, or that of CACHEFLEET_KUBERNETES."""
    return int((os.environ.get("CACHEFLEET_KUBERNETES") or version("kubernetes")).split(".")[1])


def _asked(older: str) -> list[Program]:
    if older not in {"", *OLDER}:
        raise UnavailableError(f"CACHEFLEET_KUBERNETES={older}: must be one of {', '.join(OLDER)}")
    return [replace(each, release=OLDER.get(older, "")) if each.name in _OF_A_VERSION else each for each in PROGRAMS]


def ensured(programs: Sequence[Program]) -> dict[str, Path]:
    """Paths by name of programs in the cache, built where they are not there yet; UnavailableError as ``find``."""
    if _missing(programs):
        _build_missing(programs)
    return {program.name: cached(program) for program in programs}


def version(module: str) -> str:
    """The version that a module's go.mod pins, as in "v1.37.2"; a module that is ours alone has version "v1"."""
    if module not in _PINNED:
        return "v1"
    text = (MODULES / module / "go.mod").read_text()
    match = re.search(rf"^require {re.escape(_PINNED[module])} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise UnavailableError(f"{module}/go.mod does not pin {_PINNED[module]}")
    return match.group(1)


def cache_root() -> Path:
    """``~/.cache/cachefleet``, or where XDG_CACHE_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachefleet"


def cached(program: Program) -> Path:
    """Where the program of the pinned version is kept, there or not; one whose source is here, by that source."""
    name = "-".join(filter(None, (program.module, _release(program), _source_digest(MODULES / program.module))))
    return cache_root() / "bin" / name / program.name


def _source_digest(module: Path) -> str:
    """Equal for equal files of a module with a program of our own; "" for one that only pins others' programs."""
    if not (module / "main.go").exists():
        return ""
    files = sorted(path for path in module.rglob("*") if path.suffix in {".go", ".mod", ".sum"})
    told = hashlib.sha256()
    for path in files:
        told.update(f"{path.relative_to(module)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return told.hexdigest()[:_DIGEST_DIGITS]


def _release(program: Program) -> str:
    return program.release or version(program.module)


def _assets(folder: Path) -> Binaries:
    def optional(name: str) -> Path | None:
        path = folder / name
        return path if path.exists() else None

    etcd, apiserver = optional("etcd"), optional("kube-apiserver")
    if etcd is None or apiserver is None:
        raise UnavailableError(f"KUBEBUILDER_ASSETS={folder} has no etcd or no kube-apiserver")
    return Binaries(etcd, apiserver, optional("kube-controller-manager"), optional("kubectl"))


def _build_missing(programs: Sequence[Program]) -> None:
    if shutil.which("go") is None:
        names = ", ".join(program.name for program in _missing(programs))
        raise UnavailableError(
            f"{names}: not there; install Go (https://go.dev/dl) to have them built once, "
            "or (for etcd and kube-apiserver) point KUBEBUILDER_ASSETS at a folder that setup-envtest made"
        )
    for folder in dict.fromkeys(cached(program).parent for program in programs):
        with _turn([program for program in programs if cached(program).parent == folder]) as missing:
            if missing:
                _build(folder, missing)


@contextmanager
def _turn(programs: Sequence[Program]) -> Iterator[list[Program]]:
    """Builds share a compiler cache: one at a time on a machine. What is left to build when it is our turn; nothing
    where others have built it all meanwhile, whatever they build now.
    """
    folder = cache_root() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        while missing := _missing(programs):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(WAIT_SECONDS)
            else:
                missing = _missing(programs)
                break
        yield missing


def _missing(programs: Sequence[Program]) -> list[Program]:
    return [program for program in programs if not cached(program).exists()]


def _build(folder: Path, programs: Sequence[Program]) -> None:
    """Programs of one module in one go: while the linker works on one of them, the other cores have work too."""
    folder.mkdir(parents=True, exist_ok=True)
    names, release = ", ".join(program.name for program in programs), _release(programs[0])
    started = time.monotonic()
    with _emptied(folder / ".partial") as partial:
        log = folder / "build.log"
        # One program may have another name than its package; several are named after theirs.
        made = f"{partial}/{programs[0].name}" if len(programs) == 1 else f"{partial}/"
        options = ["-v", "-trimpath", "-ldflags", _ldflags(programs[0]), "-o", made]
        _say(f"building {names} {release} (minutes, once; log: {log})")
        module = _module(programs[0], partial)
        options += [] if module.parent == MODULES else ["-mod=mod"]  # no go.sum is kept for it
        command = ["go", "build", *options, *(program.package for program in programs)]
        with log.open("w") as out:
            environment = {**os.environ, "CGO_ENABLED": "0"}
            process = subprocess.Popen(command, cwd=module, env=environment, stdout=out, stderr=out)
            code = _watch(process, module.name, log, started)
        if code:
            raise UnavailableError(f"go build of {names} failed:\n{''.join(_lines(log)[-20:])}")
        for program in programs:
            (partial / program.name).replace(cached(program))  # whole or not there at all
    log.unlink()
    _say(f"built {names} in {time.monotonic() - started:.0f} s")


def _module(program: Program, partial: Path) -> Path:
    """The folder of a program's Go module. That of an older Kubernetes is made of its own go.mod, KEDA's is trimmed."""
    if not program.release:
        return MODULES / program.module
    folder, told = partial / "module", _downloaded(program)
    if program.module == "keda":
        keda_source.write(Path(told["Dir"]), folder)
        return folder
    folder.mkdir()
    (folder / "go.mod").write_text(_module_text(program.release, Path(told["GoMod"]).read_text()))
    return folder


def source(program: Program) -> Path:
    """The folder of the Go module of a program that has a release of its own, as downloaded."""
    return Path(_downloaded(program)["Dir"])


def _downloaded(program: Program) -> dict[str, str]:
    name = f"{_PINNED[program.module]}@{program.release}"
    asked = ["go", "mod", "download", "-json", name]
    done = subprocess.run(asked, cwd=cache_root(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"{name} cannot be downloaded:\n{done.stdout}{done.stderr}")
    told: dict[str, str] = json.loads(done.stdout)
    return told


def _module_text(release: str, own: str) -> str:
    """A go.mod that requires a release of Kubernetes, with the parts of it that ``own``, its go.mod, has in folders."""
    parts = re.findall(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging/", own, re.MULTILINE)
    replaced = "".join(f"replace {part} => {part} {release.replace('v1.', 'v0.', 1)}\n" for part in parts)
    go = re.search(r"^go \S+$", own, re.MULTILINE)
    return f"module older\n\n{go[0] if go else ''}\n\nrequire k8s.io/kubernetes {release}\n\n{replaced}"


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """A folder for what is half made, of this builder and of one that was killed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _watch(process: subprocess.Popen[bytes], module: str, log: Path, started: float) -> int:
    try:
        while True:
            try:
                return process.wait(PROGRESS_SECONDS)
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - started
                _say(f"  {module}: {len(_lines(log))} packages compiled, {elapsed:.0f} s")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _ldflags(program: Program) -> str:
    made = {
        "containerd": _containerd_values,
        "helm": _helm_values,
        "kubernetes": _kubernetes_values,
        "syft": _syft_values,
    }
    values = made[program.module](_release(program)) if program.module in made else dict[str, str]()
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in values.items())])


def _kubernetes_values(release: str) -> dict[str, str]:
    """Without these the server says v0.0.0, and clients compare versions."""
    major, minor, *_ = release.removeprefix("v").split(".")
    where = "k8s.io/component-base/version"
    return {f"{where}.gitVersion": release, f"{where}.gitMajor": major, f"{where}.gitMinor": minor}


def _containerd_values(release: str) -> dict[str, str]:
    return {"github.com/containerd/containerd/v2/version.Version": release}


def _helm_values(release: str) -> dict[str, str]:
    """Without these it takes itself, and the cluster for which it renders without asking one, to be years old."""
    major, minor, *_ = version("kubernetes").removeprefix("v").split(".")
    where = "helm.sh/helm/v3/pkg/chartutil"
    version_ = {"helm.sh/helm/v3/internal/version.version": release}
    return version_ | {f"{where}.k8sVersionMajor": major, f"{where}.k8sVersionMinor": minor}


def _syft_values(release: str) -> dict[str, str]:
    """Without it the lists that it writes say that they are of no version of it."""
    return {"main.version": release.removeprefix("v")}


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines(keepends=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(find(), ensured((*NODE_PROGRAMS, HELM)))
    except UnavailableError as problem:
        sys.exit(f"error: {problem}")
