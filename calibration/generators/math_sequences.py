"""Exercises: sequences, series, recurrences and induction."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random

from generators.numbers import poly, signed
from generators.piece import Piece, pick, plural


def arithmetic_sequence(rng: Random, turn: int) -> Piece:
    """Terms and sums of an arithmetic sequence."""
    a, d, n = rng.randint(3, 25), rng.randint(2, 11), rng.randint(12, 40)
    last = a + (n - 1) * d
    total = n * (a + last) // 2
    first = ", ".join(str(a + k * d) for k in range(5))
    if turn % 2 == 0:
        ask = f"The sequence {first}, ... continues with equal steps. Find term {n} and the sum "
        ask += f"of the first {n} terms."
        lines = [
            f"Each term exceeds the previous one by {a + d} - {a} = {d}.",
            f"Term number n is {a} + (n - 1) * {d}.",
            f"For n = {n}: {a} + {n - 1} * {d} = {a} + {(n - 1) * d} = {last}.",
            f"Pair the first with the last term; each pair adds up to {a} + {last} = {a + last}.",
            f"The sum is {n} * {a + last} / 2 = {total}.",
        ]
    else:
        ask = (
            f"A theatre has {a} seats in the front row and {d} more in every row behind it. There "
            f"are {n} rows. How many seats does it have, and in which row do you first find at "
            f"least {a + 8 * d - 1} seats?"
        )
        lines = [
            f"The rows hold {first}, ... seats.",
            f"The last row has {a} + {n - 1} * {d} = {last} seats.",
            f"In total there are {n} * ({a} + {last}) / 2 = {total} seats.",
            f"Row n holds {a} + (n - 1) * {d}. We need (n - 1) * {d} to be at least {8 * d - 1}.",
            f"Row 8 has {a + 7 * d}, too few; row 9 has {a + 8 * d}. The answer is row 9.",
        ]
    return Piece.from_lines("Arithmetic sequence", ask, lines)


def geometric_series(rng: Random, turn: int) -> Piece:
    """Terms and sums of a geometric sequence, finite or infinite."""
    if turn % 2 == 0:
        a, q, n = rng.randint(2, 7), rng.randint(2, 4), rng.randint(6, 9)
        terms = [a * q**k for k in range(n)]
        total = sum(terms)
        ask = f"Add {n} terms of the sequence that starts with {a} and is multiplied by {q} each "
        ask += "time."
        lines = [
            "The terms are " + ", ".join(map(str, terms)) + ".",
            f"Call the sum S. Then {q}S = S - {a} + {terms[-1] * q}, because every term moves one "
            "place on.",
            f"So {q - 1}S = {terms[-1] * q} - {a} = {terms[-1] * q - a} and S = {total}.",
            f"The closed form {a} * ({q}^{n} - 1) / ({q} - 1) gives {a} * {q**n - 1} / {q - 1} = "
            f"{total} too.",
        ]
    else:
        a, den = rng.randint(3, 12), rng.randint(3, 6)
        num = rng.randint(1, den - 1)
        r = Fraction(num, den)
        partial = [sum((a * r**k for k in range(m)), Fraction(0)) for m in range(1, 5)]
        limit = a / (1 - r)
        ask = (
            f"A ball travels {a} metres, then {r} of that distance, then {r} of the second "
            "distance, and so on for ever. How far does it go in all?"
        )
        lines = [
            f"The distances form a geometric series with ratio {r}.",
            *(f"After {plural(m, 'stretch', 'stretches')}: {p}" for m, p in enumerate(partial, 1)),
            f"The infinite sum is {a} / (1 - {r}) = {a} / ({1 - r}) = {limit} metres.",
            f"After four stretches {limit - partial[-1]} metres are still missing; each further "
            f"stretch multiplies this gap by {r}.",
        ]
    return Piece.from_lines("Geometric series", ask, lines)


def recurrence(rng: Random, turn: int) -> Piece:
    """Tabulate a recurrence and verify its closed form."""
    if turn % 2 == 0:
        r, s = rng.choice([(2, 3), (1, 4), (2, 5), (-1, 3), (-2, 3), (1, 3)])
        a, b = rng.randint(1, 4), rng.randint(1, 3)
        seq = [a * r**k + b * s**k for k in range(7)]
        p, q = r + s, -r * s
        rule = f"{poly([p, 0], 'a(n-1)')} {signed(q)}a(n-2)"
        ask = (
            f"The sequence satisfies a(0) = {seq[0]}, a(1) = {seq[1]} and a(n) = {rule}. List the "
            "terms up to a(6) and find a formula."
        )
        lines = [
            f"a({k}) = {p} * {seq[k - 1]} {signed(q)} * ({seq[k - 2]}) = {seq[k]}"
            for k in range(2, 7)
        ]
        lines += [
            f"The characteristic equation x^2 = {poly([p, q])} has the roots {r} and {s}.",
            f"So a(n) = c * ({r})^n + d * ({s})^n, where c + d = {seq[0]} and {r}c {signed(s)}d = "
            f"{seq[1]}.",
            f"This gives c = {a} and d = {b}. For n = 6: {a} * {r**6} + {b} * {s**6} = {seq[6]}.",
        ]
        return Piece.from_lines("A recurrence", ask, lines)
    n = rng.randint(9, 12)
    fib = [1, 1]
    while len(fib) < n + 1:
        fib.append(fib[-1] + fib[-2])
    squares = [f * f for f in fib[:n]]
    ask = f"In how many ways can a strip of length {n} be tiled with pieces of length 1 and 2?"
    lines = [
        "The last piece has length 1 or 2, so t(n) = t(n-1) + t(n-2), with t(0) = t(1) = 1.",
        *(f"t({k}) = {fib[k - 1]} + {fib[k - 2]} = {fib[k]}" for k in range(2, n + 1)),
        f"There are {fib[n]} tilings.",
        f"A side result: {' + '.join(map(str, squares))} = {sum(squares)} = {fib[n - 1]} * "
        f"{fib[n]}.",
    ]
    return Piece.from_lines("Tilings of a strip", ask, lines)


def induction(rng: Random, turn: int) -> Piece:
    """Prove an identity by induction and test it on computed values."""
    cases: list[tuple[str, str, str, Callable[[int], int | Fraction], str]] = [
        (
            "1 + 2 + ... + n = n(n + 1)/2",
            "n(n + 1)/2 + (n + 1) = (n + 1)(n/2 + 1) = (n + 1)(n + 2)/2",
            "k",
            lambda k: k,
            "n(n + 1)/2",
        ),
        (
            "1^2 + 2^2 + ... + n^2 = n(n + 1)(2n + 1)/6",
            "n(n + 1)(2n + 1)/6 + (n + 1)^2 = (n + 1)(2n^2 + 7n + 6)/6 = (n + 1)(n + 2)(2n + 3)/6",
            "k^2",
            lambda k: k * k,
            "n(n + 1)(2n + 1)/6",
        ),
        (
            "1 + 3 + 5 + ... + (2n - 1) = n^2",
            "n^2 + (2n + 1) = (n + 1)^2",
            "2k - 1",
            lambda k: 2 * k - 1,
            "n^2",
        ),
        (
            "1/(1*2) + 1/(2*3) + ... + 1/(n(n + 1)) = n/(n + 1)",
            "n/(n + 1) + 1/((n + 1)(n + 2)) = (n^2 + 2n + 1)/((n + 1)(n + 2)) = (n + 1)/(n + 2)",
            "1/(k(k + 1))",
            lambda k: Fraction(1, k * (k + 1)),
            "n/(n + 1)",
        ),
        (
            "1^3 + 2^3 + ... + n^3 = n^2(n + 1)^2/4",
            "n^2(n + 1)^2/4 + (n + 1)^3 = (n + 1)^2(n^2 + 4n + 4)/4 = (n + 1)^2(n + 2)^2/4",
            "k^3",
            lambda k: k**3,
            "n^2(n + 1)^2/4",
        ),
        (
            "1*2 + 2*3 + ... + n(n + 1) = n(n + 1)(n + 2)/3",
            "n(n + 1)(n + 2)/3 + (n + 1)(n + 2) = (n + 1)(n + 2)(n + 3)/3",
            "k(k + 1)",
            lambda k: k * (k + 1),
            "n(n + 1)(n + 2)/3",
        ),
        (
            "1 + 2 + 4 + ... + 2^(n-1) = 2^n - 1",
            "2^n - 1 + 2^n = 2 * 2^n - 1 = 2^(n+1) - 1",
            "2^(k-1)",
            lambda k: 2 ** (k - 1),
            "2^n - 1",
        ),
    ]
    claim, step, term, f, closed = cases[turn % len(cases)]
    n = rng.randint(5, 7)
    assume = pick(
        [
            "Induction step: suppose the claim holds for n. Adding the next summand gives",
            "Now assume the statement for some n and pass to n + 1:",
        ],
        turn,
    )
    lines = [
        f"Base case: for n = 1 the left side is {f(1)}, and {closed} equals {f(1)} as well.",
        assume,
        f"{step},",
        "which is the same formula with n + 1 in place of n. This completes the proof.",
        f"Numerical test up to n = {n}, with summands {term}:",
    ]
    total: int | Fraction = 0
    for k in range(1, n + 1):
        total += f(k)
        lines.append(f"n = {k}: summand {f(k)}, sum {total}")
    return Piece.from_lines("Induction", f"Prove for every positive integer n that {claim}.", lines)
