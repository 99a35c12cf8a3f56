"""Which refusals of a Kubernetes API server are worth trying again."""

import msgspec
import pytest

from cachefleet_runtime.kubernetes import RefusedError, RetryableError, error_of


@pytest.mark.parametrize("status", [0, 401, 408, 409, 429, 500, 503])
def test_worth_trying_again(status: int) -> None:
    assert isinstance(error_of(status, b""), RetryableError)


@pytest.mark.parametrize("status", [400, 403, 404, 410, 415, 422])
def test_not_worth_trying_again(status: int) -> None:
    assert isinstance(error_of(status, b""), RefusedError)


def test_an_unknown_field_is_refused_for_good_whatever_its_status() -> None:
    message = "failed to create typed patch object (default/x; apps/v1, Kind=Deployment): .spec.x: field not declared"
    assert isinstance(error_of(500, msgspec.json.encode({"message": message})), RefusedError)


def test_a_webhook_that_is_away_is_told_of() -> None:
    message = 'Internal error occurred: failed calling webhook "x.example.org": no endpoints available for service "x"'
    assert isinstance(error_of(500, msgspec.json.encode({"message": message})), RefusedError)


def test_says_what_the_server_said() -> None:
    error = error_of(422, msgspec.json.encode({"reason": "Invalid", "message": "spec.x: no"}))
    assert (error.status, error.reason, error.message) == (422, "Invalid", "spec.x: no")


@pytest.mark.parametrize("text", ["<html>bad gateway</html>", "[]", '"text"', "x" * 100_000])
def test_answers_of_others_are_kept_short(text: str) -> None:
    error = error_of(502, text.encode())
    assert error.reason == "Unknown"
    assert len(error.message) <= 1024
