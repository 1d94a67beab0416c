"""Exercises: calculating by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from generators.numbers import decimal, power_form, signed
from generators.piece import Piece, pick, plural


def long_multiplication(rng: Random, turn: int) -> Piece:
    """Multiply two numbers by partial products."""
    a, b = rng.randint(213, 987), rng.randint(134, 879)
    parts = [(int(d) * 10**p, d) for p, d in enumerate(reversed(str(b))) if d != "0"]
    lines = [f"{a} * {value} = {a * value}" for value, _ in parts]
    running = 0
    sums = []
    for value, _ in parts:
        if running:
            sums.append(f"{running} + {a * value} = {running + a * value}")
        running += a * value
    ask = pick(
        [
            f"Multiply {a} by {b} without a calculator, one digit of {b} at a time.",
            f"A hall has {a} rows with {b} seats in each. How many seats is that? Show the "
            "partial products.",
            f"Compute the product {a} * {b} by the school method and check it modulo 9.",
        ],
        turn,
    )
    split = " + ".join(str(value) for value, _ in reversed(parts))
    nine = f"{a % 9} * {b % 9} = {(a % 9) * (b % 9)}"
    check = (
        f"Check by casting out nines: {a} leaves {a % 9} and {b} leaves {b % 9}; {nine}, which "
        f"leaves {(a * b) % 9}. The result {a * b} leaves {(a * b) % 9} as well."
    )
    answer = [
        f"Split the second factor: {b} = {split}.",
        *lines,
        "Add them up:",
        *sums,
        f"So {a} * {b} = {a * b}.",
        check,
    ]
    return Piece.from_lines("Long multiplication", ask, answer)


def long_division(rng: Random, turn: int) -> Piece:
    """Divide digit by digit."""
    d = rng.randint(12, 47)
    n = rng.randint(10_000, 99_999)
    steps: list[str] = []
    rest = 0
    for digit in str(n):
        before = rest * 10 + int(digit)
        q, rest_new = divmod(before, d)
        if q or steps:
            start = f"Bring down {digit}: into {before}" if steps else f"Into {before}"
            steps.append(
                f"{start} the divisor {d} goes {plural(q, 'time')}, because {q} * {d} = {q * d}; "
                f"{before - q * d} remains."
            )
        rest = rest_new
    q, r = divmod(n, d)
    ask = pick(
        [
            f"Divide {n} by {d}. Give quotient and remainder.",
            f"{n} sheets are packed in bundles of {d}. How many full bundles are there, and how "
            "many sheets are left?",
            f"Carry out the long division {n} : {d} and write each intermediate remainder.",
        ],
        turn,
    )
    end = pick(
        [
            f"Quotient {q}, remainder {r}. Proof: {q} * {d} + {r} = {q * d} + {r} = {n}.",
            f"There are {q} full groups and {r} left over, since {d} * {q} = {q * d} and "
            f"{n} - {q * d} = {r}.",
            f"Hence {n} = {d} * {q} + {r}, with {r} smaller than {d} as it must be.",
        ],
        turn,
    )
    return Piece.from_lines("Long division", ask, [*steps, end])


def fraction_sum(rng: Random, turn: int) -> Piece:
    """Add and subtract three fractions over a common denominator."""
    dens = rng.sample([4, 6, 8, 9, 10, 12, 15, 18], 3)
    nums = [rng.choice([k for k in range(1, d) if math.gcd(k, d) == 1]) for d in dens]
    signs = [1, 1, -1] if turn % 2 == 0 else [1, -1, 1]
    lcm = math.lcm(*dens)
    terms = [s * n * (lcm // d) for s, n, d in zip(signs, nums, dens, strict=True)]
    text = f"{nums[0]}/{dens[0]}"
    for s, n, d in list(zip(signs, nums, dens, strict=True))[1:]:
        text += f" {signed(s * n)}/{d}"
    total = Fraction(sum(terms), lcm)
    widen = [
        f"{n}/{d} = {n} * {lcm // d} / ({d} * {lcm // d}) = {n * lcm // d}/{lcm}"
        for n, d in zip(nums, dens, strict=True)
    ]
    ask = pick(
        [
            f"Work out {text} as a fraction in lowest terms.",
            f"Simplify {text}. Name the common denominator first.",
        ],
        turn,
    )
    numerator = f"{terms[0]} " + " ".join(signed(t) for t in terms[1:])
    g = math.gcd(sum(terms), lcm)
    shorten = (
        f"Both parts are divisible by {g}, so the sum is {total}."
        if g > 1
        else f"The fraction {total} is already in lowest terms."
    )
    size = f"As a decimal this is about {decimal(total, 4)}."
    primes = ", ".join(f"{d} = {power_form(d)}" for d in dens)
    answer = [
        f"Factor the denominators: {primes}. Their least common multiple is {lcm}.",
        *widen,
        f"The numerators give {numerator} = {sum(terms)}.",
        shorten,
        size,
    ]
    return Piece.from_lines("Fractions", ask, answer)


def number_bases(rng: Random, turn: int) -> Piece:
    """Convert between number bases."""
    n = rng.randint(150, 999)
    base = [2, 7, 5, 3, 9][turn % 5]
    digits = []
    lines = []
    rest = n
    while rest:
        q, r = divmod(rest, base)
        lines.append(f"{rest} = {base} * {q} + {r}")
        digits.append(r)
        rest = q
    text = "".join(map(str, reversed(digits)))
    back = " + ".join(f"{d} * {base**k}" for k, d in reversed(list(enumerate(digits))) if d)
    ask = f"Write {n} in base {base} and in hexadecimal."
    q, r = divmod(n, 16)
    q2, r2 = divmod(q, 16)
    lines += [
        f"Read the remainders upward: {n} is {text} in base {base}.",
        f"Test: {back} = {n}.",
        f"In base 16: {n} = 16 * {q} + {r} and {q} = 16 * {q2} + {r2}, so the digits are {q2}, "
        f"{r2}, {r}. With A to F for ten to fifteen the result is {n:X}.",
    ]
    return Piece.from_lines("Number bases", ask, lines)
