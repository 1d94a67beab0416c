"""Losses and bounds as they are stored: near what they were, and never the wrong way round."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.rounding import rounded, rounded_down

SHARES = st.one_of(
    st.floats(1e-12, 1), st.floats(1e-300, 1), st.floats(-300, 0).map(lambda e: 10**e)
)


@given(value=SHARES)
def test_rounded_down(value):
    low = rounded_down(value)
    assert value * (1 - 2e-8) <= low <= value
    assert len(f"{Decimal(repr(low)).normalize():e}".partition("e")[0].replace(".", "")) <= 9
    assert rounded_down(low) <= low


def test_rounded_down_by_hand():
    assert rounded_down(0.1234567899999) == 0.123456789
    assert rounded_down(1.2345678999e-6) == 1.23456789e-6
    assert rounded_down(0.0) == 0.0


@given(value=SHARES)
def test_rounded(value):
    assert rounded(value) == pytest.approx(value, rel=1e-8, abs=0)
    assert rounded(value) == pytest.approx(value, rel=0, abs=1e-12)


def test_rounded_by_hand():
    assert rounded(0.12345678901234) == 0.123456789012
    assert rounded(0.00012345678901234) == 0.000123456789
    assert rounded(7.4019251749e-06) == 7.40192517e-06
    assert rounded(0.0) == 0.0
    assert rounded(1.0) == 1.0


@given(loss=SHARES, share=st.one_of(st.just(1.0), st.floats(0.9, 1), st.floats(0, 1)))
def test_a_bound_stays_below_the_loss(loss, share):
    assert rounded_down(loss * share) <= rounded(loss)
