"""What a person reads after an install, and pastes into a shell."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cachefleet_core.budget import plan_budget
from cachefleet_core.pool.manifest import documents
from cachefleet_core.pool.spec import read_pool
from tests.chart.helm import CHART, KUBERNETES, NAMESPACE, RELEASE, Values, run
from tests.chart.matrix import MATRIX

pytestmark = pytest.mark.cluster

KUBECTL = """#!/bin/sh
echo "$*" >> "$ASKED"
case "$*" in apply*) cat > "$APPLIED" ;; esac
"""


WHOLE = '{{- define "notes" -}}%s{{- end }}\nkind: Notes\ntext: {{ include "notes" . | toJson }}\n'


def notes(values: Values, folder: Path) -> str:
    """As helm writes them after an install, which needs a cluster; they are made an object, which does not."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    written = chart / "templates" / "NOTES.txt"
    (chart / "templates" / "notes.yaml").write_text(WHOLE % written.read_text())
    written.unlink()
    command = ["template", RELEASE, str(chart), "--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    text = run(*command, "--show-only", "templates/notes.yaml", "--values", "-", given=json.dumps(dict(values)))
    found: str = yaml.safe_load(text)["text"]
    return found


@pytest.mark.parametrize("values", ["defaults", "tuned"])
def test_its_commands_work_as_they_are_pasted(values: str, tmp_path: Path) -> None:
    text = notes(MATRIX[values], tmp_path)
    lines = text[text.index("kubectl") : text.index("`helm test")].splitlines()
    steps = "\n".join(line for line in lines if line[:2] not in {"2.", "3."})
    for name in ("kubectl", "curl"):
        program = tmp_path / name
        program.write_text(KUBECTL if name == "kubectl" else '#!/bin/sh\nprintf "%s\\n" "$@" >> "$CURL"\n')
        program.chmod(0o755)
    told = {"ASKED": "asked", "APPLIED": "applied", "CURL": "curl-asked"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "KEY": "k"} | {n: str(tmp_path / f) for n, f in told.items()}
    # What was sent to the background may come after the rest.
    subprocess.run(["bash", "-eu"], input=f"{steps}\nwait\n", text=True, env=environment, timeout=60, check=True)

    asked = (tmp_path / "asked").read_text()
    assert [word for word in ("get namespace", "apply", "wait", "port-forward") if word not in asked] == []
    assert (tmp_path / "applied").read_text().startswith("apiVersion:")
    assert "wait" not in (tmp_path / "applied").read_text()
    curl = (tmp_path / "curl-asked").read_text().splitlines()
    assert {"--retry-connrefused", "localhost:8080/v1/chat/completions"} <= set(curl)
    assert ("authorization: Bearer k" in curl) is (values == "tuned")


@pytest.mark.parametrize("devices", ["GPUs", "CPUs"])
def test_its_pool_is_admitted_on_either_kind_of_node(devices: str, tmp_path: Path) -> None:
    text = notes(MATRIX["defaults"], tmp_path)
    chosen = [line.removeprefix("# ") for line in text.splitlines() if line.removeprefix("# ").startswith("engine='")]
    manifest = text[text.index("<<EOF") : text.index("\nEOF")]
    script = f"{chosen[0]}\n{chosen[1] if devices == 'CPUs' else ''}\ncat {manifest}\nEOF\n"
    applied = subprocess.run(["bash", "-eu"], input=script, text=True, capture_output=True, check=True).stdout
    (document,) = (found for _, found in documents(applied))
    pool = read_pool(document)
    assert pool.spec.device.is_cpu is (devices == "CPUs")
    plan = plan_budget(pool.spec)
    assert plan.admitted, plan.message


def test_an_autoscaler_s_replicas_are_not_counted(tmp_path: Path) -> None:
    assert "each of the control plane replicas has a store" in notes(MATRIX["autoscaled"], tmp_path)
