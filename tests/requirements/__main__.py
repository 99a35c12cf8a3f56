"""Write docs/requirements.md; arguments are JUnit files of test runs."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.requirements.document import DOCUMENT, document, results
from tests.requirements.found import shown

if __name__ == "__main__":
    files = [path for path in map(Path, sys.argv[1:]) if path.exists()]
    DOCUMENT.write_text(document(shown(), results(files)), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT.name} written, results of {len(files)} runs read\n")
