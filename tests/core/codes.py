"""Native and Python code for block keys and digests, for tests that run over both."""

from __future__ import annotations

from typing import Final

import pytest

from cachefleet_core.native import PYTHON, native_code

CODES: Final = [pytest.param(PYTHON, id="python"), pytest.param(native_code(), id="native")]
over_both: Final = pytest.mark.parametrize("code", CODES)
