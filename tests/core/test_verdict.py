"""The rule of method auto: each objection by itself, in its order."""

from dataclasses import replace

import pytest

from moeprune.core.verdict import Evidence, verdict

FOR_MESA = Evidence(
    regime="over-dispersed",
    entropy_ratio=0.93,
    entropy_ratio_lowest=0.9,
    entropy_ratio_highest=0.95,
    domains=6,
    stability={"mesa": 0.9, "reap": 0.95},
    overlap={"mesa": 0.6, "mass": 0.62},
    overlap_by_chance=0.14,
    agreement=0.7,
    agreement_of_halves=0.96,
    gain=0.002,
    gain_deviation=0.0003,
    worst_domain={"mesa": "código", "reap": "math"},
    worst_domain_loss={"mesa": 0.22, "reap": 0.24},
)


def test_mesa_where_nothing_speaks_against_it():
    found = verdict(FOR_MESA)
    assert found.method == "mesa"
    assert len(found.reasons) == 3 and not any("\n" in line for line in found.reasons)
    assert "93.0%" in found.reasons[0] and "over-dispersed" in found.reasons[0]
    assert "90%" in found.reasons[1] and "código" in found.reasons[1]
    assert found.reasons[2].startswith("chosen mesa: ")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"regime": "standard", "entropy_ratio": 0.74}, "peaked"),
        ({"domains": 1}, "only one"),
        (
            {
                "gain": None,
                "gain_deviation": None,
                "agreement_of_halves": None,
                "stability": {"mesa": None, "reap": None},
            },
            "too few documents",
        ),
        ({"stability": {"mesa": 0.79, "reap": 0.9}}, "another plan by mesa"),
        ({"stability": {"mesa": 0.6, "reap": 0.61}}, "another plan by mesa"),
        ({"gain": 0.0006}, "does not hold on other text"),
        ({"gain": 0.0, "gain_deviation": 0.0}, "does not hold on other text"),
        ({"gain": -0.1}, "does not hold on other text"),
        ({"agreement": 0.47}, "different experts"),
    ],
)
def test_each_objection_is_enough(changed, says):
    found = verdict(replace(FOR_MESA, **changed))
    assert found.method == "reap"
    assert says in found.reasons[2]
    over = replace(FOR_MESA, **changed).regime == "over-dispersed"
    assert ("--method mesa" in found.reasons[2]) == over


@pytest.mark.parametrize(
    "changed",
    [
        {"stability": {"mesa": 0.6, "reap": 0.6}},  # no worse than reap's
        {"stability": {"mesa": 0.8, "reap": 1.0}},
        {"agreement": 0.3, "agreement_of_halves": 0.6},  # reap's own noise is not held against mass
    ],
)
def test_what_is_no_objection(changed):
    assert verdict(replace(FOR_MESA, **changed)).method == "mesa"
