"""What is proven of a plan, in words: never more than is known."""

import math

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

import moeprune
from moeprune.cli.plan_text import plan_text
from moeprune.cli.proof_text import worst_text
from moeprune.core.proven import bound_text


@pytest.fixture(scope="module")
def stats():
    return synthetic.stats(synthetic.facts([12, 12, 12]), tokens_F=(12, 9, 10, 11), seed=2)


class Told:
    """As much of a plan as the text reads."""

    worst_domain = "math"
    allocation = "global"
    options: dict = {}

    def __init__(self, bound, **more):
        self.lower_bound = bound
        for name, value in more.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("loss", "bound", "says"),
    [
        (0.0491, 0.0487, "loses 4.91%, no plan of this size can lose less than 4.87%"),
        (0.0491, 0.048799, "can lose less than 4.87%"),  # not 4.88
        (0.114806, 0.114795, "loses 11.48%, no plan of this size can lose less than 11.47%"),
        (
            0.1148063,
            0.1148061,
            "loses 11.48063%, no plan of this size can lose less than 11.48061%",
        ),
        (0.25, 0.249999999, "loses 25.0000%, no plan of this size can lose less than 24.9999%"),
        (0.29, 0.29, "can lose less than 29.00000%"),
    ],
)
def test_the_digits_tell_them_apart(loss, bound, says):
    assert says in worst_text(Told(bound), loss)


def test_what_the_bound_is_of():
    text = worst_text(Told(0.1, allocation="uniform", options={"must_keep": {}}), 0.2)
    assert "no uniform plan of this size under the same constraints can" in text
    assert worst_text(Told(None), 0.2) == "worst domain math loses 20.00%"
    for count, allocation, said in (
        (1, "global", False),
        (2, "global", True),
        (2, "uniform", False),
    ):
        told = Told(0.1, allocation=allocation, options={"multiple_of": count})
        assert ("under the same constraints" in worst_text(told, 0.2)) == said


@given(bound=st.floats(0, 1), digits=st.integers(2, 5))
def test_a_bound_is_rounded_down(bound, digits):
    said = float(bound_text(bound, digits).removesuffix("%"))
    assert said <= bound * 100 + 1.1e-3 * 10.0**-digits
    assert math.isclose(said, bound * 100, abs_tol=10.0**-digits * 1.01)


@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_every_method_states_a_bound(allocation, stats):
    for method in ("mesa", "mesa-exact", "reap", "random"):
        plan = moeprune.plan(stats, method=method, ratio=0.25, allocation=allocation)
        assert "of this size can lose less than" in plan_text(plan, "last")
        assert ("proven by mass" in plan_text(plan, "last")) == (method == "mesa-exact")


def test_a_limit_that_was_reached_is_stated(stats):
    plan = moeprune.plan(stats, method="mesa-exact", ratio=0.25)
    assert "time limit" not in plan_text(plan, "last")
    plan.details["time_limit_hit"] = True
    assert "another machine may find another plan" in plan_text(plan, "last")


def test_constraints_hold_for_the_bound_too(stats):
    """The bound of what may still leave is higher than that of everything."""
    free = moeprune.plan(stats, method="mesa-exact", ratio=0.25, allocation="global")
    kept = {row: list(range(6)) for row in (0, 1, 2)}
    held = moeprune.plan(
        stats, method="mesa-exact", ratio=0.25, allocation="global", must_keep=kept
    )
    assert free.lower_bound < held.lower_bound <= held.worst_domain_loss
    assert all(set(range(6)) <= set(ids) for ids in held.keep)
