"""The examples of weights on a shared volume and in images: their objects fit each other, and the pods of them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachefleet_core.budget import plan_budget
from cachefleet_core.pool.manifest import documents
from cachefleet_core.pool.spec import read_pool
from cachefleet_operator.manifests.pod import pod_template
from tests.operator.pod_security import violations
from tests.operator.pools import SETTINGS

FILE = Path(__file__).parents[2] / "examples" / "weights-volume.yaml"


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for _, document in documents(FILE.read_text())}


def mounts(container: dict[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


def claims(pod: dict[str, Any]) -> dict[str, str]:
    found = {each["name"]: each.get("persistentVolumeClaim") for each in pod["volumes"]}
    return {name: claim["claimName"] for name, claim in found.items() if claim}


def test_the_job_writes_where_the_engine_reads(made: dict[str, dict[str, Any]]) -> None:
    job, pool = made["Job"]["spec"]["template"]["spec"], read_pool(made["PrefixCachePool"])
    pod = pod_template(pool, SETTINGS)["spec"]
    name = made["PersistentVolumeClaim"]["metadata"]["name"]
    assert claims(job) == claims(pod) == {"weights": name}
    source = pool.spec.model.source
    assert f'Path("{source}")' in job["containers"][0]["args"][0]
    for container in (job["containers"][0], pod["containers"][0]):
        assert source.startswith(mounts(container)["weights"] + "/")
    assert pod["containers"][0]["image"] == job["containers"][0]["image"]


def test_the_jobs_program_renames_a_whole_download_and_does_nothing_twice(
    made: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []

    def snapshot_download(repository: str, *, local_dir: Path, ignore_patterns: list[str]) -> None:
        fetched.append((repository, ignore_patterns))
        local_dir.mkdir()
        assert not (tmp_path / "qwen3-8b").exists()

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    (program,) = made["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    for _ in range(2):
        exec(program.replace("/weights", str(tmp_path)), {})  # noqa: S102  # our own example
    assert [path.name for path in tmp_path.iterdir()] == ["qwen3-8b"]
    assert len(fetched) == 1


def test_one_namespace_and_the_same_user(made: dict[str, dict[str, Any]]) -> None:
    assert {each["metadata"]["namespace"] for each in made.values()} == {"serving"}
    pod = pod_template(read_pool(made["PrefixCachePool"]), SETTINGS)["spec"]
    assert made["Job"]["spec"]["template"]["spec"]["securityContext"] == pod["securityContext"]


def test_both_pods_keep_to_the_restricted_profile(made: dict[str, dict[str, Any]]) -> None:
    assert not violations(made["Job"]["spec"]["template"]["spec"])
    assert not violations(pod_template(read_pool(made["PrefixCachePool"]), SETTINGS)["spec"])


def test_the_comment_says_its_sizes_truly(made: dict[str, dict[str, Any]]) -> None:
    plan = plan_budget(read_pool(made["PrefixCachePool"]).spec)
    assert (plan.kv_cache_mib, plan.budget_mib, plan.running_mib) == (26897, 16384, 10513)
    assert plan.admitted


def test_the_pool_of_images_is_that_of_the_volume_and_its_pod_as_restricted(made: dict[str, dict[str, Any]]) -> None:
    (document,) = [each for _, each in documents(FILE.with_name("weights-image.yaml").read_text())]
    images, volume = read_pool(document), read_pool(made["PrefixCachePool"])
    assert (images.spec.device, images.spec.engine) == (volume.spec.device, volume.spec.engine)
    pod = pod_template(images, SETTINGS)["spec"]
    assert not violations(pod)
    assert [each["image"]["reference"].partition("@")[0] for each in pod["volumes"] if "image" in each] == [
        "registry.example/acme/qwen3-8b:1",
        "registry.example/acme/qwen3-8b-adapters:4",
    ]
