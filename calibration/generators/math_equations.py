"""Exercises: equations, systems of equations and matrices."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from generators.numbers import poly, root_factor, signed
from generators.piece import Piece, pick


def linear_equation(rng: Random, turn: int) -> Piece:
    """Solve a linear equation with brackets, told plainly or as a story."""
    x = rng.randint(3, 14)
    if turn % 2 == 0:
        a, b, c, d = rng.randint(4, 9), rng.randint(2, 8), rng.randint(2, 3), rng.randint(1, 9)
        right = a * (x - b) + d - c * x
        ask = f"Solve {a}(x - {b}) + {d} = {c}x {signed(right)} for x."
        lines = [
            f"Expand the bracket: {a}x - {a * b} + {d} = {c}x {signed(right)}.",
            f"Collect the constants on the left: {a}x {signed(d - a * b)} = {c}x {signed(right)}.",
            f"Subtract {c}x on both sides: {a - c}x {signed(d - a * b)} = {right}.",
            f"Move the constant: {a - c}x = {right + a * b - d}.",
            f"Divide by {a - c}: x = {x}.",
            f"Test: the left side is {a} * ({x} - {b}) + {d} = {a * (x - b) + d}, the right side "
            f"is {c} * {x} {signed(right)} = {c * x + right}.",
        ]
        return Piece.from_lines("A linear equation", ask, lines)
    child, times, years = x, rng.randint(3, 5), rng.randint(4, 12)
    parent = child * times
    total = parent + child + 2 * years
    ask = (
        f"A mother is {times} times as old as her daughter. In {years} years their ages will add "
        f"up to {total}. How old are they now?"
    )
    lines = [
        f"Let d be the daughter's age. The mother is {times}d years old.",
        f"In {years} years the ages will be d + {years} and {times}d + {years}.",
        f"Their sum is {times + 1}d + {2 * years} = {total}.",
        f"Therefore {times + 1}d = {total - 2 * years}, and d = {child}.",
        f"The daughter is {child} and the mother is {parent}.",
        f"Check: {child + years} + {parent + years} = {total}.",
    ]
    return Piece.from_lines("Ages", ask, lines)


def quadratic(rng: Random, turn: int) -> Piece:
    """Solve a quadratic by factoring, by the discriminant or by completing the square."""
    r, s = rng.sample([k for k in range(-9, 10) if k], 2)
    b, c = -(r + s), r * s
    low, high = min(r, s), max(r, s)
    if turn % 3 == 0:
        ask = f"Find all real solutions of {poly([1, b, c])} = 0 by factoring."
        lines = [
            f"We need two numbers whose product is {c} and whose sum is {b}.",
            f"They are {-low} and {-high}: {-low} * ({-high}) = {c} and {-low} {signed(-high)} "
            f"= {b}.",
            f"So the equation reads {root_factor(low)}{root_factor(high)} = 0.",
            f"A product is zero only if a factor is, which gives x = {low} or x = {high}.",
        ]
    elif turn % 3 == 1:
        a = rng.randint(2, 5)
        disc = (a * b) ** 2 - 4 * a * a * c
        root = math.isqrt(disc)
        ask = f"Solve {poly([a, a * b, a * c])} = 0 with the quadratic formula."
        lines = [
            f"The coefficients are a = {a}, b = {a * b}, c = {a * c}.",
            f"Discriminant: b^2 - 4ac = {(a * b) ** 2} - 4 * {a} * ({a * c}) = {disc}.",
            f"Its square root is {root}, because {root} * {root} = {disc}.",
            f"x = ({-a * b} + {root}) / {2 * a} = {high} or x = ({-a * b} - {root}) / {2 * a} = "
            f"{low}.",
            f"Vieta confirms it: the roots add up to {low + high} and multiply to {low * high}.",
        ]
    else:
        p = rng.randint(2, 8)
        k = rng.choice([j for j in range(2, 10) if j != p])
        b, c = -2 * p, p * p - k * k
        ask = f"Complete the square in {poly([1, b, c])} and find its minimum and its zeros."
        lines = [
            f"Half of {b} is {-p}, and its square is {p * p}.",
            f"{poly([1, b, c])} = (x - {p})^2 - {p * p} {signed(c)} = (x - {p})^2 - {k * k}.",
            f"A square is never negative, so the least value is {-k * k}, taken at x = {p}.",
            f"The zeros satisfy (x - {p})^2 = {k * k}, that is x - {p} = {k} or x - {p} = {-k}.",
            f"Hence x = {p + k} or x = {p - k}.",
        ]
    return Piece.from_lines("A quadratic equation", ask, lines)


def linear_system(rng: Random, turn: int) -> Piece:
    """Solve two equations in two unknowns."""
    x, y = rng.randint(2, 12), rng.randint(2, 12)
    while True:
        a, b, c, d = (rng.randint(2, 7) for _ in range(4))
        if a * d != b * c:
            break
    e, f = a * x + b * y, c * x + d * y
    stories = [
        ("x", "y", f"Solve the system {a}x + {b}y = {e} and {c}x + {d}y = {f}."),
        (
            "p",
            "n",
            f"{a} pens and {b} notebooks cost {e} crowns, while {c} pens and {d} notebooks cost "
            f"{f} crowns. What is the price of one pen and of one notebook?",
        ),
        (
            "s",
            "t",
            f"In a warehouse {a} small and {b} tall crates weigh {e} kilograms together; {c} small "
            f"and {d} tall ones weigh {f} kilograms. Find the weight of each sort.",
        ),
    ]
    u, v, ask = stories[turn % 3]
    det = a * d - b * c
    lines = [
        f"Write {a}{u} + {b}{v} = {e} (1) and {c}{u} + {d}{v} = {f} (2).",
        f"Multiply (1) by {d}: {a * d}{u} + {b * d}{v} = {e * d}.",
        f"Multiply (2) by {b}: {b * c}{u} + {b * d}{v} = {f * b}.",
        f"Subtract, and {v} drops out: ({a * d} - {b * c}){u} = {e * d} - {f * b}, so "
        f"({det}){u} = {e * d - f * b} and {u} = {x}.",
        f"Put this into (1): {a} * {x} + {b}{v} = {e}, hence {b}{v} = {e - a * x} and {v} = {y}.",
        f"Equation (2) agrees: {c} * {x} + {d} * {y} = {c * x} + {d * y} = {f}.",
    ]
    return Piece.from_lines("Two unknowns", ask, lines)


def three_unknowns(rng: Random, turn: int) -> Piece:
    """Eliminate in a system of three equations that is regular by construction."""
    x, y, z = (rng.randint(-5, 6) for _ in range(3))
    p, q, r = (rng.randint(2, 4) for _ in range(3))
    # Row 1 is (1, p, q); rows 2 and 3 are built from an upper triangular system.
    m, n = rng.randint(2, 4), rng.randint(2, 3)
    one, two = x + p * y + q * z, y + r * z
    rows = [
        [1, p, q, one],
        [m, m * p + 1, m * q + r, m * one + two],
        [n, n * p + 2, n * q + 2 * r + 1, n * one + 2 * two + z],
    ]
    text = "\n".join(f"{poly([w[0], 0])} + {w[1]}y + {w[2]}z = {w[3]}" for w in rows)
    second = [b - m * a for a, b in zip(rows[0], rows[1], strict=True)]
    third = [b - n * a for a, b in zip(rows[0], rows[2], strict=True)]
    last = [b - 2 * a for a, b in zip(second, third, strict=True)]
    ask = pick(
        [
            f"Use Gaussian elimination on\n{text}",
            f"Three planes are given by the equations\n{text}\nIn which point do they meet?",
        ],
        turn,
    )
    lines = [
        f"Subtract {m} times the first row from the second: y + {second[2]}z = {second[3]}.",
        f"Subtract {n} times the first row from the third: {third[1]}y + {third[2]}z = {third[3]}.",
        f"Subtract twice the new second row from the new third: z = {last[3]}.",
        f"Back substitution: y = {second[3]} - {second[2]} * ({z}) = {y}.",
        f"And x = {rows[0][3]} - {p} * ({y}) - {q} * ({z}) = {x}.",
        f"The solution is (x, y, z) = ({x}, {y}, {z}). In the last equation it gives "
        f"{rows[2][0]} * ({x}) + {rows[2][1]} * ({y}) + {rows[2][2]} * ({z}) = {rows[2][3]}.",
    ]
    return Piece.from_lines("Three unknowns", ask, lines)


def matrices(rng: Random, turn: int) -> Piece:
    """Multiply matrices or invert one."""
    a, b, c, d = (rng.randint(-3, 6) for _ in range(4))
    while a * d - b * c in (0, 1, -1):
        a += 1
        d += 2
    if turn % 2 == 0:
        e, f, g = rng.randint(-2, 5), rng.randint(1, 5), rng.randint(1, 6)
        h = rng.choice([j for j in range(-3, 6) if e * j != f * g])
        prod = [[a * e + b * g, a * f + b * h], [c * e + d * g, c * f + d * h]]
        d1, d2 = a * d - b * c, e * h - f * g
        ask = f"Let A = [[{a}, {b}], [{c}, {d}]] and B = [[{e}, {f}], [{g}, {h}]]. Compute AB and "
        ask += "compare the determinants."
        lines = [
            f"Row 1, column 1: {a} * ({e}) + ({b}) * ({g}) = {prod[0][0]}",
            f"Row 1, column 2: {a} * ({f}) + ({b}) * ({h}) = {prod[0][1]}",
            f"Row 2, column 1: {c} * ({e}) + ({d}) * ({g}) = {prod[1][0]}",
            f"Row 2, column 2: {c} * ({f}) + ({d}) * ({h}) = {prod[1][1]}",
            f"AB = {prod}.",
            f"det A = {d1}, det B = {d2}, and det AB = "
            f"{prod[0][0] * prod[1][1] - prod[0][1] * prod[1][0]} = {d1} * ({d2}).",
        ]
        return Piece.from_lines("Matrix product", ask, lines)
    det = a * d - b * c
    inverse = [[Fraction(d, det), Fraction(-b, det)], [Fraction(-c, det), Fraction(a, det)]]
    u, v = rng.randint(1, 9), rng.randint(1, 9)
    x = inverse[0][0] * u + inverse[0][1] * v
    y = inverse[1][0] * u + inverse[1][1] * v
    ask = f"Invert M = [[{a}, {b}], [{c}, {d}]] and solve M(x, y) = ({u}, {v})."
    lines = [
        f"The determinant is {a} * ({d}) - ({b}) * ({c}) = {det}, not zero.",
        f"Swap the diagonal, change the signs of the rest, divide by {det}: first row "
        f"{inverse[0][0]}, {inverse[0][1]}; second row {inverse[1][0]}, {inverse[1][1]}.",
        f"x = ({inverse[0][0]}) * {u} + ({inverse[0][1]}) * {v} = {x}",
        f"y = ({inverse[1][0]}) * {u} + ({inverse[1][1]}) * {v} = {y}",
        f"Back in M: {a} * ({x}) + ({b}) * ({y}) = {a * x + b * y} and {c} * ({x}) + ({d}) * ({y})"
        f" = {c * x + d * y}.",
    ]
    return Piece.from_lines("Inverse matrix", ask, lines)
