"""Exercises: polynomials, their derivatives and integrals."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from generators.numbers import horner, poly, root_factor, signed
from generators.piece import Piece, join_and, pick


def synthetic_division(rng: Random, turn: int) -> Piece:
    """Divide a cubic by a linear factor with Horner's scheme."""
    r, s, t = rng.sample([-4, -3, -2, -1, 1, 2, 3, 4, 5], 3)
    f = [1, -(r + s + t), r * s + r * t + s * t, -r * s * t]
    row = [f[0]]
    lines = [f"Bring down {f[0]}."]
    for c in f[1:]:
        lines.append(
            f"{row[-1]} * ({r}) = {row[-1] * r}; {c} {signed(row[-1] * r)} = {c + row[-1] * r}."
        )
        row.append(c + row[-1] * r)
    ask = pick(
        [
            f"Show that x = {r} is a zero of {poly(f)} and find the others.",
            f"Divide {poly(f)} by x {signed(-r)} and factor the quotient.",
        ],
        turn,
    )
    lines += [
        f"The last entry is 0, so the division leaves nothing over: {poly(f)} = "
        f"{root_factor(r)}({poly(row[:-1])}).",
        f"The quotient splits because {s} {signed(t)} = {s + t} and {s} * ({t}) = {s * t}: it "
        f"equals {root_factor(s)}{root_factor(t)}.",
        f"The zeros are {join_and(sorted((r, s, t)))}.",
    ]
    return Piece.from_lines("Horner's scheme", ask, lines)


def derivative(rng: Random, turn: int) -> Piece:
    """Differentiate a cubic with integer critical points, or find a tangent."""
    if turn % 2 == 0:
        while True:
            r, s = sorted(rng.sample([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5], 2))
            if (r + s) % 2 == 0:
                break
        f = [2, -3 * (r + s), 6 * r * s, rng.randint(-6, 9)]
        d1 = [6, -6 * (r + s), 6 * r * s]
        d2 = [12, -6 * (r + s)]
        ask = f"Find the local maximum and minimum of f(x) = {poly(f)}."
        lines = [
            f"Differentiate term by term: f'(x) = {poly(d1)}.",
            f"Take out 6: f'(x) = 6({poly([1, -(r + s), r * s])}) = "
            f"6{root_factor(r)}{root_factor(s)}.",
            f"The slope vanishes at x = {r} and x = {s}.",
            f"The second derivative is f''(x) = {poly(d2)}.",
            f"f''({r}) = {horner(d2, r)} is negative: maximum at ({r}, {horner(f, r)}).",
            f"f''({s}) = {horner(d2, s)} is positive: minimum at ({s}, {horner(f, s)}).",
            f"The curve changes its bend where f''(x) = 0, at x = {Fraction(r + s, 2)}.",
        ]
        return Piece.from_lines("Extreme values", ask, lines)
    f = [rng.randint(1, 3), rng.randint(-5, 5), rng.randint(-6, 6), rng.randint(-9, 9)]
    x0 = rng.choice([-2, -1, 1, 2, 3])
    d1 = [3 * f[0], 2 * f[1], f[2]]
    slope, y0 = horner(d1, x0), horner(f, x0)
    ask = f"Find the tangent to the graph of g(x) = {poly(f)} at x = {x0}."
    lines = [
        f"The power rule turns x^n into n x^(n-1), hence g'(x) = {poly(d1)}.",
        f"Value: g({x0}) = {y0}.",
        f"Slope: g'({x0}) = {3 * f[0]} * ({x0})^2 + ({2 * f[1]}) * ({x0}) + ({f[2]}) = {slope}.",
        f"The line through ({x0}, {y0}) with this slope is y = {poly([slope, y0 - slope * x0])}.",
        f"At x = {x0} it gives {slope} * ({x0}) {signed(y0 - slope * x0)} = {y0}, as required.",
    ]
    return Piece.from_lines("A tangent", ask, lines)


def integral(rng: Random, turn: int) -> Piece:
    """Integrate a quadratic exactly, and compare with a trapezoid sum."""
    a, b, c = 3 * rng.randint(1, 3), 2 * rng.randint(-3, 4), rng.randint(-5, 8)
    lo = rng.randint(-2, 1)
    hi = lo + rng.randint(2, 4)
    f, prim = [a, b, c], [a // 3, b // 2, c, 0]
    exact = horner(prim, hi) - horner(prim, lo)
    values = [horner(f, x) for x in range(lo, hi + 1)]
    trap = Fraction(sum(values[:-1]) + sum(values[1:]), 2)
    ask = pick(
        [
            f"Integrate {poly(f)} from {lo} to {hi} and compare with trapezoids of width 1.",
            f"Let f(x) = {poly(f)}. Find the exact integral between x = {lo} and x = {hi}, then "
            "estimate it by the trapezoid rule with unit steps.",
        ],
        turn,
    )
    lines = [
        f"A primitive is F(x) = {poly(prim)}.",
        f"F({hi}) = {horner(prim, hi)} and F({lo}) = {horner(prim, lo)}.",
        f"The integral is {horner(prim, hi)} - ({horner(prim, lo)}) = {exact}.",
        "Function values: "
        + ", ".join(f"f({x}) = {v}" for x, v in zip(range(lo, hi + 1), values, strict=True))
        + ".",
        f"Each trapezoid has the mean of two neighbours as area; together they give {trap}.",
        f"The estimate is too large by {trap - exact}, because the curve bends upward.",
    ]
    return Piece.from_lines("Definite integral", ask, lines)
