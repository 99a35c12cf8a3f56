"""Both codes that compute keys and digests; tests of the native one are skipped where there is none that fits."""

from __future__ import annotations

from typing import Final

import pytest

from cachefleet_core.native import PYTHON, choose, lacking

LACK: Final = lacking()
NATIVE: Final = pytest.mark.skipif(bool(LACK), reason=LACK)
CODES: Final = [
    pytest.param(PYTHON, id="python"),
    pytest.param(PYTHON if LACK else choose("native"), id="native", marks=NATIVE),
]
over_both: Final = pytest.mark.parametrize("code", CODES)
