import re
from pathlib import Path

from cachefleet_core.budget import BudgetReason
from cachefleet_operator.reasons import Reason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
_ROW = re.compile(r"^\| `(\w+)` \| [\w, ]+ \| .+ \|$", re.MULTILINE)


def test_every_reason_is_explained_once_and_no_other() -> None:
    explained = _ROW.findall(PAGE.split("## Reasons")[1])
    assert sorted(explained) == sorted([*Reason, *BudgetReason])


def test_no_reason_is_written_elsewhere() -> None:
    """A condition's reason is one of the list, so that the page can have them all."""
    for path in (ROOT / "operator" / "cachefleet_operator").rglob("*.py"):
        if path.name not in {"reasons.py", "pods.py", "conditions.py"}:
            quoted = re.findall(r'"(\w+)"', path.read_text())
            assert not set(quoted) & ({*Reason} - {"Valid"}), path.name
