"""What every test run shares: how many examples property tests try."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, max_examples=100)
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
