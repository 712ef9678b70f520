"""Printed numbers against ours: rounding to the printed digit, and nothing looser."""

import pytest

from bracketflow.experiments.claims import Verdict, digits, judged, matches, numeric, same_order


@pytest.mark.parametrize(
    ("ours", "printed", "same"),
    [
        (1594.2, "1594", True),
        (1599.6, "1600", True),
        (1600.6, "1600", False),
        (0.02966, "0.030", True),
        (0.0288, "0.030", False),
        (7.105427e-15, "7.1e-15", True),
        (7.2e-15, "7.1e-15", False),
        (-5.43e-5, "-5.4e-5", True),
        (1.7298, "1.730", True),
        (1.7290, "1.730", False),
        (14680.7, "14681", True),
        (float("nan"), "9372", False),
    ],
)
def test_matches_to_the_printed_digit(ours, printed, same):
    assert matches(ours, printed) is same


def test_same_order_is_a_factor_of_ten():
    assert same_order(6.3e-14, "2.8e-14")
    assert not same_order(6.3e-12, "2.8e-14")
    assert not same_order(float("nan"), "1")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1594.2, "1594"), (7.105e-15, "7.11e-15"), (0.0297, "0.0297"), (2.5e8, "2.50e8"), (0, "0")],
)
def test_digits(value, text):
    assert digits(value, 4 if value > 1000 and value < 1e6 else 3) == text


def test_an_untested_claim_has_no_verdict_of_its_own():
    claim = numeric("x", "5", 5.0, tested=False)
    assert claim.verdict is Verdict.UNTESTED
    assert "full" in claim.reason
    assert judged("x", "a", "b", Verdict.WRONG, "why", when=False).verdict is Verdict.NOT_REPRODUCED
