"""All kinds of exercise of the domain ``math``."""

from __future__ import annotations

from generators.math_arithmetic import (
    fraction_sum,
    long_division,
    long_multiplication,
    number_bases,
)
from generators.math_chance import regression, statistics_set, two_dice, urn
from generators.math_counting import committee, inclusion_exclusion, partitions
from generators.math_equations import (
    linear_equation,
    linear_system,
    matrices,
    quadratic,
    three_unknowns,
)
from generators.math_functions import derivative, integral, synthetic_division
from generators.math_integers import euclid, factorisation, modular_power, remainders
from generators.math_rates import compound_interest, mixtures, motion, percentages, unit_conversion
from generators.math_sequences import arithmetic_sequence, geometric_series, induction, recurrence
from generators.math_shapes import heron, polygon_area, solids
from generators.piece import Kind

MATH_KINDS: tuple[Kind, ...] = (
    long_multiplication,
    long_division,
    fraction_sum,
    linear_equation,
    quadratic,
    linear_system,
    three_unknowns,
    euclid,
    modular_power,
    factorisation,
    arithmetic_sequence,
    geometric_series,
    polygon_area,
    heron,
    two_dice,
    urn,
    derivative,
    integral,
    induction,
    unit_conversion,
    statistics_set,
    regression,
    committee,
    partitions,
    motion,
    percentages,
    mixtures,
    number_bases,
    remainders,
    compound_interest,
    recurrence,
    synthetic_division,
    inclusion_exclusion,
    matrices,
    solids,
)
