"""Write the calibration text that is computed instead of written by hand.

``python calibration/generate.py`` rewrites ``math.jsonl``, ``instruction.jsonl`` and
``domains.json`` beside this file; ``python calibration/generate.py --check`` exits 1 when a file
on disk differs from what would be written.  The output depends on nothing but this program and,
for the checksums in ``domains.json``, the hand-written ``commonsense.jsonl``, ``science.jsonl``
and ``knowledge.jsonl``.

A *kind* is a function that makes one exercise (a :class:`Piece`).  Its ``turn`` argument counts how
often the kind was used before, so that the wording changes when it comes back in a later document.
Every number, list and table in an answer is computed, never typed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
SEED = 20261130
DOCUMENTS = 28
MIN_WORDS = 315
MATH_FILE = "math.jsonl"
INSTRUCTION_FILE = "instruction.jsonl"
DOMAINS_FILE = "domains.json"
DOMAINS_SCHEMA = "moeprune.domains/1"


@dataclass(frozen=True)
class Piece:
    """One exercise: a short title, what is asked, and the answer."""

    title: str
    ask: str
    answer: str


Kind = Callable[[Random, int], Piece]
Layout = Callable[[int, Sequence[Piece]], str]


def pick(options: Sequence[str], turn: int) -> str:
    """Return the option whose turn it is."""
    return options[turn % len(options)]


def join_and(items: Sequence[str]) -> str:
    """Join words as English does: "a", "a and b", "a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


def signed(value: int | Fraction) -> str:
    """Return a number as the tail of a sum: "+ 3" or "- 3"."""
    return f"+ {value}" if value >= 0 else f"- {-value}"


def poly(coefficients: Sequence[int | Fraction], name: str = "x") -> str:
    """Write a polynomial, highest power first."""
    degree = len(coefficients) - 1
    out = ""
    for index, c in enumerate(coefficients):
        power = degree - index
        if c == 0:
            continue
        size = abs(c)
        factor = "" if size == 1 and power else str(size)
        if factor and power and isinstance(size, Fraction) and size.denominator != 1:
            factor = f"({factor})"
        body = factor + ("" if power == 0 else name if power == 1 else f"{name}^{power}")
        if not out:
            out = f"-{body}" if c < 0 else body
        else:
            out += f" - {body}" if c < 0 else f" + {body}"
    return out or "0"


def horner(coefficients: Sequence[int | Fraction], x: int | Fraction) -> int | Fraction:
    """Evaluate a polynomial, highest power first."""
    value: int | Fraction = 0
    for c in coefficients:
        value = value * x + c
    return value


def factor(n: int) -> list[int]:
    """Return the prime factors of ``n`` in rising order, with repetition."""
    found: list[int] = []
    p = 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return [*found, n] if n > 1 else found


def power_form(n: int) -> str:
    """Write ``n`` as a product of prime powers."""
    return " * ".join(
        str(p) if e == 1 else f"{p}^{e}" for p, e in sorted(Counter(factor(n)).items())
    )


def decimal(value: Fraction, places: int) -> str:
    """Round a fraction half up and write it with a fixed number of decimals."""
    scaled = math.floor(abs(value) * 10**places + Fraction(1, 2))
    whole, rest = divmod(scaled, 10**places)
    sign = "-" if value < 0 and scaled else ""
    return f"{sign}{whole}" + (f".{rest:0{places}d}" if places else "")


def plural(n: int, word: str, many: str | None = None) -> str:
    """Return "1 time" or "3 times"; ``many`` is an irregular plural."""
    return f"{n} {word if n == 1 else many or word + 's'}"


def ratio(n: int, d: int) -> str:
    """Write a quotient and, where it can be reduced, its lowest terms."""
    return f"{n}/{d}" + ("" if str(Fraction(n, d)) == f"{n}/{d}" else f" = {Fraction(n, d)}")


def is_prime(n: int) -> bool:
    """Say whether ``n`` is prime."""
    return n > 1 and len(factor(n)) == 1


# --------------------------------------------------------------------------------- mathematics


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
    answer = "\n".join(
        [
            f"Split the second factor: {b} = {split}.",
            *lines,
            "Add them up:",
            *sums,
            f"So {a} * {b} = {a * b}.",
            check,
        ]
    )
    return Piece("Long multiplication", ask, answer)


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
    return Piece("Long division", ask, "\n".join([*steps, end]))


def fraction_sum(rng: Random, turn: int) -> Piece:
    """Add and subtract three fractions over a common denominator."""
    dens = rng.sample([4, 6, 8, 9, 10, 12, 15, 18], 3)
    nums = [rng.choice([k for k in range(1, d) if math.gcd(k, d) == 1]) for d in dens]
    signs = [1, 1, -1] if turn % 2 == 0 else [1, -1, 1]
    lcm = math.lcm(*dens)
    terms = [s * n * (lcm // d) for s, n, d in zip(signs, nums, dens, strict=True)]
    text = f"{nums[0]}/{dens[0]}"
    for s, n, d in list(zip(signs, nums, dens, strict=True))[1:]:
        text += f" {'+' if s > 0 else '-'} {n}/{d}"
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
    answer = "\n".join(
        [
            f"Factor the denominators: {primes}. Their least common multiple is {lcm}.",
            *widen,
            f"The numerators give {numerator} = {sum(terms)}.",
            shorten,
            size,
        ]
    )
    return Piece("Fractions", ask, answer)


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
        return Piece("A linear equation", ask, "\n".join(lines))
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
    return Piece("Ages", ask, "\n".join(lines))


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
            f"So the equation reads (x {signed(-low)})(x {signed(-high)}) = 0.",
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
    return Piece("A quadratic equation", ask, "\n".join(lines))


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
    return Piece("Two unknowns", ask, "\n".join(lines))


def three_unknowns(rng: Random, turn: int) -> Piece:
    """Eliminate in a system of three equations that is regular by construction."""
    x, y, z = (rng.randint(-5, 6) for _ in range(3))
    p, q, r = (rng.randint(2, 4) for _ in range(3))
    # Row 1 is (1, p, q); rows 2 and 3 are built from an upper triangular system.
    m, n = rng.randint(2, 4), rng.randint(2, 3)
    rows = [
        [1, p, q, x + p * y + q * z],
        [m, m * p + 1, m * q + r, m * (x + p * y + q * z) + y + r * z],
        [
            n,
            n * p + 2,
            n * q + 2 * r + 1,
            n * (x + p * y + q * z) + 2 * (y + r * z) + z,
        ],
    ]
    text = [f"{poly([w[0]])}x + {w[1]}y + {w[2]}z = {w[3]}" for w in rows]
    text = [t[1:] if t.startswith("1x") else t for t in text]
    second = [b - m * a for a, b in zip(rows[0], rows[1], strict=True)]
    third = [b - n * a for a, b in zip(rows[0], rows[2], strict=True)]
    last = [b - 2 * a for a, b in zip(second, third, strict=True)]
    ask = pick(
        [
            "Use Gaussian elimination on\n" + "\n".join(text),
            "Three planes are given by the equations\n"
            + "\n".join(text)
            + "\nIn which point do they meet?",
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
    return Piece("Three unknowns", ask, "\n".join(lines))


def euclid(rng: Random, turn: int) -> Piece:
    """Find a greatest common divisor with every step, and Bezout's coefficients."""
    g = rng.randint(2, 17)
    while True:
        u, v = rng.randint(40, 160), rng.randint(20, 99)
        if u > v and math.gcd(u, v) == 1 and u % v > 2:
            break
    a, b = u * g, v * g
    steps = []
    old = (a, 1, 0)
    new = (b, 0, 1)
    track = []
    while new[0]:
        q, r = divmod(old[0], new[0])
        steps.append(f"{old[0]} = {q} * {new[0]} + {r}")
        nxt = (r, old[1] - q * new[1], old[2] - q * new[2])
        if r:
            track.append(f"{r} = ({nxt[1]}) * {a} + ({nxt[2]}) * {b}")
        old, new = new, nxt
    s, t = old[1], old[2]
    if turn % 3 == 0:
        ask = f"Find gcd({a}, {b}) by Euclid's algorithm and reduce the fraction {b}/{a}."
        tail = [
            f"The last remainder that is not zero is {g}, so gcd({a}, {b}) = {g}.",
            f"Dividing both parts by {g} gives {b}/{a} = {v}/{u}.",
            f"The least common multiple is {a} * {b} / {g} = {a * b // g}.",
        ]
    elif turn % 3 == 1:
        ask = f"Find integers s and t with {a}s + {b}t = gcd({a}, {b})."
        tail = [
            "Now express each remainder by the two given numbers:",
            *track,
            f"So s = {s} and t = {t}: {a * s} {signed(b * t)} = {g}.",
        ]
    else:
        ask = (
            f"A floor measures {a} cm by {b} cm. What is the largest square tile that covers it "
            "without cutting, and how many tiles are needed?"
        )
        tail = [
            f"The side must divide both lengths, so the largest is gcd({a}, {b}) = {g} cm.",
            f"Along the sides lie {a} / {g} = {u} and {b} / {g} = {v} tiles.",
            f"Altogether {u} * {v} = {u * v} tiles are needed.",
        ]
    return Piece("Euclid's algorithm", ask, "\n".join([*steps, *tail]))


def modular_power(rng: Random, turn: int) -> Piece:
    """Raise to a power modulo m by repeated squaring, or find a last digit."""
    if turn % 2 == 0:
        m = rng.choice([k for k in range(23, 98) if is_prime(k)])
        a, e = rng.randint(3, m - 2), rng.randint(21, 60)
        bits = [k for k in range(e.bit_length()) if e >> k & 1]
        lines = [
            f"In binary {e} is {e:b}, so {e} = " + " + ".join(str(2**k) for k in reversed(bits))
        ]
        value = a % m
        for k in range(e.bit_length()):
            if k:
                lines.append(f"{a}^{2**k} = {value}^2 = {value * value} = {value * value % m}")
                value = value * value % m
            else:
                lines.append(f"{a}^1 = {value}")
        result = 1
        for k in bits:
            square = pow(a, 2**k, m)
            if k != bits[0]:
                lines.append(f"{result} * {square} = {result * square} = {result * square % m}")
            result = result * square % m
        ask = f"Compute {a}^{e} modulo {m} by repeated squaring."
        lines[0] += f". All that follows is meant modulo {m}."
        lines.append(f"Thus {a}^{e} leaves the remainder {result} on division by {m}.")
        return Piece("Modular powers", ask, "\n".join(lines))
    a, e = rng.choice([2, 3, 7, 8, 12, 13, 17, 18]), rng.randint(100, 999)
    cycle = [pow(a, k, 10) for k in range(1, 5)]
    r = e % 4
    ask = f"What is the last digit of {a}^{e}?"
    lines = [
        f"Only the last digit matters at each multiplication by {a}.",
        *(f"{a}^{k} ends in {cycle[k - 1]}" for k in range(1, 5)),
        f"{a}^5 ends in {pow(a, 5, 10)} again, so the pattern has period 4.",
        f"Now {e} = 4 * {e // 4} + {r}; "
        + (
            f"the remainder {r} selects entry {r} of the cycle."
            if r
            else "the remainder 0 selects the fourth entry of the cycle."
        ),
        f"The last digit of {a}^{e} is {pow(a, e, 10)}.",
    ]
    return Piece("Last digits", ask, "\n".join(lines))


def factorisation(rng: Random, turn: int) -> Piece:
    """Factor a number, and count or add its divisors."""
    base = rng.choice([4, 8, 12, 20]) * rng.choice([3, 5, 9, 15]) * rng.choice([7, 11, 13, 17])
    n = base * rng.choice([3, 5, 7])
    lines = []
    rest = n
    for p in factor(n):
        lines.append(f"{rest} / {p} = {rest // p}")
        rest //= p
    counts = sorted(Counter(factor(n)).items())
    count = math.prod(e + 1 for _, e in counts)
    total = sum(d for d in range(1, n + 1) if n % d == 0)
    lines.append(f"So {n} = {power_form(n)}.")
    if turn % 2 == 0:
        ask = f"Factor {n} into primes. How many divisors does it have, and what is their sum?"
        product = " * ".join(str(e + 1) for _, e in counts)
        sums = [
            f"for {p}: " + " + ".join(str(p**k) for k in range(e + 1)) + " = "
            f"{sum(p**k for k in range(e + 1))}"
            for p, e in counts
        ]
        each = " * ".join(str(sum(p**k for k in range(e + 1))) for p, e in counts)
        lines += [
            "A divisor uses each prime between zero times and the full exponent, so their number "
            f"is {product} = {count}.",
            "The sum of divisors is a product with one bracket per prime, " + "; ".join(sums) + ".",
            f"Altogether the divisors add up to {each} = {total}.",
        ]
    else:
        squares = [d * d for d in range(1, math.isqrt(n) + 1) if n % (d * d) == 0]
        ask = f"Which perfect squares divide {n}? Simplify the square root of {n}."
        big = squares[-1]
        lines += [
            "A square contains every prime an even number of times.",
            f"The squares dividing {n} are therefore {join_and([str(k) for k in squares])}.",
            f"With the largest of them, sqrt({n}) = sqrt({big} * {n // big}) = "
            f"{math.isqrt(big)} * sqrt({n // big}).",
        ]
    return Piece("Prime factors", ask, "\n".join(lines))


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
    return Piece("Arithmetic sequence", ask, "\n".join(lines))


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
    return Piece("Geometric series", ask, "\n".join(lines))


def polygon_area(rng: Random, turn: int) -> Piece:
    """Compute a quadrilateral's area from its corners."""
    pts = [
        (rng.randint(-3, 0), rng.randint(-4, 0)),
        (rng.randint(5, 9), rng.randint(-5, 0)),
        (rng.randint(6, 10), rng.randint(3, 8)),
        (rng.randint(-5, 1), rng.randint(4, 9)),
    ]
    cross = []
    lines = []
    for (x1, y1), (x2, y2) in itertools.pairwise([*pts, pts[0]]):
        cross.append(x1 * y2 - x2 * y1)
        lines.append(
            f"({x1}, {y1}) to ({x2}, {y2}): ({x1}) * ({y2}) - ({x2}) * ({y1}) = {cross[-1]}"
        )
    area = Fraction(sum(cross), 2)
    where = ", ".join(str(p) for p in pts)
    ask = pick(
        [
            f"A plot of land has its corners at {where}, in this order. Find the area.",
            f"Apply the shoelace formula to the quadrilateral {where}.",
        ],
        turn,
    )
    dx, dy = pts[2][0] - pts[0][0], pts[2][1] - pts[0][1]
    answer = [
        "For each side take x1 * y2 - x2 * y1.",
        *lines,
        f"The four values add up to {sum(cross)}; half of it is the area, {area} square units.",
        f"The diagonal from {pts[0]} to {pts[2]} has the squared length {dx}^2 + {dy}^2 = "
        f"{dx * dx + dy * dy}.",
    ]
    return Piece("Area from coordinates", ask, "\n".join(answer))


def heron(rng: Random, turn: int) -> Piece:
    """Use Heron's formula on an integer triangle, or the Pythagorean theorem."""
    if turn % 2 == 0:
        a, b, c = rng.choice(
            [(13, 14, 15), (7, 15, 20), (9, 10, 17), (11, 13, 20), (10, 13, 13), (17, 25, 28)]
        )
        k = rng.randint(1, 4)
        a, b, c = a * k, b * k, c * k
        s = (a + b + c) // 2
        square = s * (s - a) * (s - b) * (s - c)
        area = math.isqrt(square)
        ask = f"Find the area and the longest side's height in a triangle with sides {a}, {b}, {c}."
        lines = [
            f"Half the perimeter is s = ({a} + {b} + {c}) / 2 = {s}.",
            f"s - a = {s - a}, s - b = {s - b}, s - c = {s - c}.",
            f"Heron: area^2 = {s} * {s - a} * {s - b} * {s - c} = {square}.",
            f"Since {area}^2 = {area * area}, the area is {area}.",
            f"The height on the side {c} is 2 * {area} / {c} = {Fraction(2 * area, c)}.",
        ]
    else:
        m = rng.randint(3, 7)
        n = rng.randint(1, m - 1)
        a, b, c = m * m - n * n, 2 * m * n, m * m + n * n
        ask = (
            f"A ladder {c} decimetres long leans against a wall; its foot stands {a} decimetres "
            "from the wall. How high does it reach? Find the area of the triangle it makes."
        )
        lines = [
            "Wall, ground and ladder form a right angle at the foot of the wall.",
            f"height^2 = {c}^2 - {a}^2 = {c * c} - {a * a} = {b * b}.",
            f"The height is {b} decimetres, because {b}^2 = {b * b}.",
            f"Area: {a} * {b} / 2 = {a * b // 2} square decimetres.",
            f"The triple comes from m = {m} and n = {n}: m^2 - n^2 = {a}, 2mn = {b}, "
            f"m^2 + n^2 = {c}.",
        ]
    return Piece("Triangles", ask, "\n".join(lines))


def two_dice(rng: Random, turn: int) -> Piece:
    """Enumerate the throws of two dice."""
    if turn % 2 == 0:
        target = rng.choice([4, 5, 6, 8, 9, 10])
        pairs = [(i, j) for i in range(1, 7) for j in range(1, 7) if i + j == target]
        both = [p for p in pairs if 3 in p or 4 in p]
        ask = (
            f"Two fair dice are thrown. How likely is a total of {target}? Given that total, how "
            "likely is it that at least one die shows a three or a four?"
        )
        lines = [
            "There are 6 * 6 = 36 equally likely ordered results.",
            f"A total of {target} comes from " + ", ".join(map(str, pairs)) + ".",
            f"That is {len(pairs)} results, so the probability is {ratio(len(pairs), 36)}.",
            f"Among them, {len(both)} contain a three or a four: "
            + (", ".join(map(str, both)) or "none")
            + ".",
            f"The conditional probability is {Fraction(len(both), len(pairs))}.",
        ]
    else:
        d = rng.randint(1, 4)
        table = Counter(abs(i - j) for i in range(1, 7) for j in range(1, 7))
        mean = Fraction(sum(k * v for k, v in table.items()), 36)
        pairs = [(i, j) for i in range(1, 7) for j in range(1, 7) if abs(i - j) == d]
        ask = (
            f"Let D be the larger minus the smaller number on two dice. List the cases D = {d} and "
            "find the expected value of D."
        )
        lines = [
            f"D = {d} happens for "
            + ", ".join(map(str, pairs))
            + f", which is {len(pairs)} of 36.",
            "Counting every value: "
            + ", ".join(f"{k} in {table[k]} cases" for k in range(6))
            + ".",
            "Expected value: ("
            + " + ".join(f"{k} * {table[k]}" for k in range(6))
            + f") / 36 = {mean}.",
        ]
    return Piece("Two dice", ask, "\n".join(lines))


def urn(rng: Random, turn: int) -> Piece:
    """Draw without replacement, or toss coins."""
    if turn % 2 == 0:
        r, b = rng.randint(3, 7), rng.randint(3, 8)
        n = r + b
        rr, rb = Fraction(r * (r - 1), n * (n - 1)), Fraction(r * b, n * (n - 1))
        br, bb = rb, Fraction(b * (b - 1), n * (n - 1))
        ask = (
            f"An urn holds {r} red and {b} blue balls. Two are drawn without putting the first "
            "back. Find the probability that they have the same colour."
        )
        lines = [
            f"red, red: {r}/{n} * {r - 1}/{n - 1} = {rr}",
            f"red, blue: {r}/{n} * {b}/{n - 1} = {rb}",
            f"blue, red: {b}/{n} * {r}/{n - 1} = {br}",
            f"blue, blue: {b}/{n} * {b - 1}/{n - 1} = {bb}",
            f"The four branches add up to {rr + rb + br + bb}, as they should.",
            f"Same colour: {rr} + {bb} = {rr + bb}, about {decimal(100 * (rr + bb), 1)} per cent.",
        ]
        return Piece("Drawing without replacement", ask, "\n".join(lines))
    n = 4
    k = rng.randint(1, 3)
    outcomes = ["".join(o) for o in itertools.product("HT", repeat=n)]
    hits = [o for o in outcomes if o.count("H") == k]
    runs = [o for o in outcomes if "HH" in o]
    ask = f"A coin is tossed {n} times. What is the chance of exactly {k} heads? Of two heads in "
    ask += "a row somewhere?"
    lines = [
        f"The {len(outcomes)} outcomes are " + " ".join(outcomes) + ".",
        f"Exactly {k} heads: " + " ".join(hits) + f", probability {ratio(len(hits), 16)}.",
        "Two heads side by side: " + " ".join(runs) + f", probability {ratio(len(runs), 16)}.",
        f"The first count also equals the binomial coefficient C({n}, {k}) = {math.comb(n, k)}.",
    ]
    return Piece("Coin tosses", ask, "\n".join(lines))


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
            f"Take out 6: f'(x) = 6({poly([1, -(r + s), r * s])}) = 6(x {signed(-r)})"
            f"(x {signed(-s)}).",
            f"The slope vanishes at x = {r} and x = {s}.",
            f"The second derivative is f''(x) = {poly(d2)}.",
            f"f''({r}) = {horner(d2, r)} is negative: maximum at ({r}, {horner(f, r)}).",
            f"f''({s}) = {horner(d2, s)} is positive: minimum at ({s}, {horner(f, s)}).",
            f"The curve changes its bend where f''(x) = 0, at x = {Fraction(r + s, 2)}.",
        ]
        return Piece("Extreme values", ask, "\n".join(lines))
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
    return Piece("A tangent", ask, "\n".join(lines))


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
    return Piece("Definite integral", ask, "\n".join(lines))


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
    lines = [f"Base case: for n = 1 the left side is {f(1)}, and {closed} equals {f(1)} as well."]
    lines.append(
        pick(
            [
                "Induction step: suppose the claim holds for n. Adding the next summand gives",
                "Now assume the statement for some n and pass to n + 1:",
            ],
            turn,
        )
    )
    lines.append(step + ",")
    lines.append("which is the same formula with n + 1 in place of n. This completes the proof.")
    lines.append(f"Numerical test up to n = {n}, with summands {term}:")
    total: int | Fraction = 0
    for k in range(1, n + 1):
        total += f(k)
        lines.append(f"n = {k}: summand {f(k)}, sum {total}")
    return Piece("Induction", f"Prove for every positive integer n that {claim}.", "\n".join(lines))


def unit_conversion(rng: Random, turn: int) -> Piece:
    """Convert units through exact factors."""
    which = turn % 4
    if which == 0:
        v = 18 * rng.randint(2, 8)
        t = rng.randint(15, 55)
        metres = v * 1000 * t // 60
        ask = f"A train moves at {v} km/h. How many metres does it cover in one second, and how "
        ask += f"many kilometres in {t} minutes?"
        lines = [
            "One kilometre is 1000 metres and one hour is 60 * 60 = 3600 seconds.",
            f"{v} km/h = {v} * 1000 m / 3600 s = {Fraction(v * 1000, 3600)} m/s.",
            f"In {t} minutes, which is {Fraction(t, 60)} of an hour, it covers {v} * "
            f"{Fraction(t, 60)} = {Fraction(v * t, 60)} km.",
            f"As a decimal this is {decimal(Fraction(v * t, 60), 1)} km, or {metres} metres.",
        ]
    elif which == 1:
        f = rng.choice([14, 23, 41, 50, 68, 77, 95, 104])
        c = Fraction(5 * (f - 32), 9)
        k = c + Fraction(27315, 100)
        ask = f"A recipe and a laboratory note both mention {f} degrees Fahrenheit. Convert this to"
        ask += " Celsius and to kelvin."
        lines = [
            "The Celsius value is five ninths of the Fahrenheit value reduced by 32.",
            f"{f} - 32 = {f - 32}; {f - 32} * 5 = {5 * (f - 32)}; divided by 9 this is {c}.",
            f"So {f} degrees Fahrenheit equal {c} degrees Celsius.",
            f"Kelvin: {c} + 273.15 = {decimal(k, 2)}.",
            f"Back again: {c} * 9/5 + 32 = {c * Fraction(9, 5) + 32}.",
        ]
    elif which == 2:
        feet, inches = rng.randint(4, 19), rng.randint(1, 11)
        total = feet * 12 + inches
        cm = Fraction(254 * total, 100)
        ask = f"Express {feet} feet {inches} inches in metres. One inch is exactly 2.54 cm."
        lines = [
            f"A foot has 12 inches: {feet} * 12 + {inches} = {total} inches.",
            f"{total} * 2.54 cm = {decimal(cm, 2)} cm.",
            f"Divide by 100: {decimal(cm / 100, 4)} m.",
            f"To the nearest centimetre that is {decimal(cm, 0)} cm.",
        ]
    else:
        sec = rng.randint(100_000, 900_000)
        days, rest = divmod(sec, 86_400)
        hours, rest2 = divmod(rest, 3600)
        mins, s = divmod(rest2, 60)
        ask = f"How long is {sec} seconds in days, hours, minutes and seconds?"
        lines = [
            f"A day has 24 * 3600 = 86400 seconds: {sec} = {days} * 86400 + {rest}.",
            f"Hours: {rest} = {hours} * 3600 + {rest2}.",
            f"Minutes: {rest2} = {mins} * 60 + {s}.",
            f"Result: {days} days, {hours} hours, {mins} minutes and {s} seconds.",
        ]
    return Piece("Units", ask, "\n".join(lines))


def statistics_set(rng: Random, turn: int) -> Piece:
    """Mean, median, mode and variance of a small data set."""
    n = rng.choice([7, 8, 9])
    data = [rng.randint(4, 30) for _ in range(n - 1)]
    data.append(rng.choice(data))
    s = sorted(data)
    mean = Fraction(sum(data), n)
    med = Fraction(s[n // 2]) if n % 2 else Fraction(s[n // 2 - 1] + s[n // 2], 2)
    squares = sum(x * x for x in data)
    var = Fraction(squares, n) - mean * mean
    top = max(Counter(data).values())
    modes = sorted(k for k, v in Counter(data).items() if v == top)
    what = pick(
        [
            "minutes that a bus was late",
            "books borrowed by each pupil in a year",
            "eggs laid in a henhouse on successive days",
            "marks in a short test",
        ],
        turn,
    )
    ask = f"Describe these data ({what}): {', '.join(map(str, data))}. Give the mean, the median, "
    ask += "the mode, the range and the variance."
    middle = (
        f"the middle one of {n} values is {med}"
        if n % 2
        else f"the middle two are {s[n // 2 - 1]} and {s[n // 2]}, with mean {med}"
    )
    often = "The most frequent value is" if len(modes) == 1 else "The most frequent values are"
    lines = [
        f"Sum: {' + '.join(map(str, data))} = {sum(data)}.",
        f"Mean: {ratio(sum(data), n)}, about {decimal(mean, 2)}.",
        f"Sorted: {', '.join(map(str, s))}; {middle}.",
        f"{often} {join_and([str(m) for m in modes])}, "
        f"seen {top} times{' each' if len(modes) > 1 else ''}.",
        f"Range: {s[-1]} - {s[0]} = {s[-1] - s[0]}.",
        f"The squares add up to {squares}. Mean of squares minus square of mean: {squares}/{n} - "
        f"{mean * mean} = {var}, about {decimal(var, 2)}.",
    ]
    return Piece("A small data set", ask, "\n".join(lines))


def regression(rng: Random, turn: int) -> Piece:
    """Fit a least-squares line to five points."""
    xs = [1, 2, 3, 4, 5]
    slope, start = rng.randint(2, 6), rng.randint(1, 20)
    ys = [start + slope * x + rng.choice([-2, -1, 0, 1, 2]) for x in xs]
    mx, my = Fraction(sum(xs), 5), Fraction(sum(ys), 5)
    sxy = sum(((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)), Fraction(0))
    b = sxy / 10
    a = my - b * mx
    ask = pick(
        [
            "A seedling was measured once a week for five weeks, in millimetres: ",
            "Deliveries counted on five successive days: ",
        ],
        turn,
    )
    ask += ", ".join(map(str, ys)) + ". Fit a straight line by least squares and predict step 6."
    terms = " + ".join(f"({x - mx}) * ({y - my})" for x, y in zip(xs, ys, strict=True) if x != mx)
    lines = [
        f"Mean of the positions 1 to 5: {mx}. Mean of the values: {ratio(sum(ys), 5)}.",
        f"Sum of products of deviations: {terms} = {sxy}.",
        "Sum of squared deviations of the positions: 4 + 1 + 0 + 1 + 4 = 10.",
        f"Slope: {sxy}/10 = {b}. Intercept: {my} - {b} * {mx} = {a}.",
        f"Prediction for position 6: {a} + 6 * {b} = {a + 6 * b}, about {decimal(a + 6 * b, 1)}.",
        "Residuals: "
        + ", ".join(str(y - a - b * x) for x, y in zip(xs, ys, strict=True))
        + "; they add up to 0, as always with a fitted constant.",
    ]
    return Piece("A fitted line", ask, "\n".join(lines))


def committee(rng: Random, turn: int) -> Piece:
    """Count selections and arrangements."""
    if turn % 2 == 0:
        w, m = rng.randint(4, 7), rng.randint(4, 7)
        k = 4 - turn // 2 % 2
        rows = [(j, math.comb(w, j), math.comb(m, k - j)) for j in range(k + 1)]
        ask = f"A club has {w} women and {m} men. In how many ways can it choose a committee of {k}"
        ask += " with at least one woman and at least one man?"
        lines = [
            f"{plural(j, 'woman', 'women')} and {plural(k - j, 'man', 'men')}: "
            f"C({w}, {j}) * C({m}, {k - j}) = {x} * {y} = {x * y}"
            for j, x, y in rows
        ]
        mixed = [x * y for j, x, y in rows if 0 < j < k]
        lines += [
            f"Only the middle lines count: {' + '.join(map(str, mixed))} = {sum(mixed)}.",
            f"The same by subtraction: C({w + m}, {k}) = {math.comb(w + m, k)} committees in all, "
            f"minus {math.comb(w, k)} without men and {math.comb(m, k)} without women.",
        ]
        return Piece("Committees", ask, "\n".join(lines))
    word = ["LEVEL", "BANANA", "PEPPER", "COFFEE", "TATTOO"][turn // 2 % 5]
    counts = Counter(word)
    n = len(word)
    denominator = math.prod(math.factorial(v) for v in counts.values())
    total = math.factorial(n) // denominator
    first = word[0]
    left = counts[first] - 1
    den2 = denominator // math.factorial(left + 1) * math.factorial(left)
    starts = math.factorial(n - 1) // den2
    ask = f"How many different strings can be made by rearranging all letters of {word}? How many "
    ask += f"of them begin with {first}?"
    lines = [
        "Letters: "
        + ", ".join(f"{c} occurs {plural(v, 'time')}" for c, v in sorted(counts.items()))
        + ".",
        f"With labels on equal letters there would be {n}! = {math.factorial(n)} orders.",
        "Equal letters can be exchanged unnoticed, so we divide by "
        + " * ".join(f"{v}!" for _, v in sorted(counts.items()))
        + f" = {denominator}.",
        f"The number of strings is {math.factorial(n)} / {denominator} = {total}.",
        f"If {first} is fixed in front, {n - 1} letters remain: {math.factorial(n - 1)} / {den2} = "
        f"{starts}.",
    ]
    return Piece("Rearranged letters", ask, "\n".join(lines))


def partitions(rng: Random, turn: int) -> Piece:
    """List the partitions of an integer, or count lattice paths."""
    if turn % 2 == 0:
        n = 6 + turn // 2 % 3

        def parts(rest: int, limit: int) -> list[list[int]]:
            if rest == 0:
                return [[]]
            return [
                [k, *tail] for k in range(min(rest, limit), 0, -1) for tail in parts(rest - k, k)
            ]

        every = parts(n, n)
        odd = [p for p in every if all(k % 2 for k in p)]
        distinct = [p for p in every if len(set(p)) == len(p)]
        ask = f"Write {n} as a sum of positive integers in all ways, ignoring order. Compare the "
        ask += "sums of odd parts with the sums of different parts."

        def show(some: list[list[int]]) -> str:
            return "; ".join(" + ".join(map(str, p)) for p in some)

        lines = [
            f"There are {len(every)} partitions: {show(every)}.",
            f"Only odd parts, {len(odd)} cases: {show(odd)}.",
            f"All parts different, {len(distinct)} cases: {show(distinct)}.",
            "The two counts agree, as Euler proved for every integer.",
        ]
        return Piece("Partitions", ask, "\n".join(lines))
    w, h = rng.randint(4, 6), rng.randint(3, 4)
    grid = [[math.comb(i + j, j) for i in range(w + 1)] for j in range(h + 1)]
    ask = f"How many shortest paths lead from one corner of a {w} by {h} grid of streets to the "
    ask += "opposite corner?"
    lines = ["Write at each crossing the sum of the numbers to the left and below:"]
    lines += ["  ".join(str(v) for v in row) for row in reversed(grid)]
    lines += [
        f"The far corner carries {grid[h][w]}.",
        f"Another view: a path is a word with {w} steps east and {h} steps north, and there are "
        f"C({w + h}, {h}) = {math.comb(w + h, h)} such words.",
    ]
    return Piece("Paths on a grid", ask, "\n".join(lines))


def motion(rng: Random, turn: int) -> Piece:
    """Solve a meeting or an overtaking problem."""
    if turn % 2 == 0:
        v, w = rng.choice([12, 15, 18]), rng.choice([16, 20, 24])
        t = rng.randint(2, 5)
        d = (v + w) * t
        ask = (
            f"Two cyclists start at the same moment from towns {d} km apart and ride toward each "
            f"other at {v} km/h and {w} km/h. When and where do they meet?"
        )
        lines = [
            f"Every hour the gap closes by {v} + {w} = {v + w} km.",
            f"It is gone after {d} / {v + w} = {t} hours.",
            f"The rider at {v} km/h has then covered {v} * {t} = {v * t} km, the other {w} * {t} = "
            f"{w * t} km.",
            f"Together {v * t} + {w * t} = {d} km, the whole distance.",
            f"One hour before the meeting they were still {v + w} km apart.",
        ]
    else:
        v = rng.choice([60, 72, 80])
        w = v + rng.choice([12, 15, 20, 30])
        lead = rng.choice([20, 30, 40, 50])
        head = Fraction(v * lead, 60)
        need = head / (w - v)
        ask = (
            f"A lorry leaves at 08:00 at {v} km/h. A car follows {lead} minutes later at {w} km/h. "
            "How long does the car need to catch up, and how far from the start?"
        )
        lines = [
            f"In {lead} minutes the lorry gains {v} * {lead}/60 = {head} km.",
            f"The car is faster by {w} - {v} = {w - v} km/h.",
            f"It needs {head} / {w - v} = {need} hours, which is {need * 60} minutes.",
            f"By then it has driven {w} * {need} = {w * need} km.",
            f"The lorry has been on the road for {need * 60 + lead} minutes and has covered {v} * "
            f"{need + Fraction(lead, 60)} = {v * (need + Fraction(lead, 60))} km, the same.",
        ]
    return Piece("Motion", ask, "\n".join(lines))


def percentages(rng: Random, turn: int) -> Piece:
    """Discounts, taxes and changes that do not cancel."""
    price = 20 * rng.randint(6, 40)
    off, tax = rng.choice([10, 15, 20, 25, 30, 40]), rng.choice([5, 7, 8, 19, 20])
    after = Fraction(price * (100 - off), 100)
    final = after * (100 + tax) / 100
    if turn % 2 == 0:
        ask = (
            f"A coat is marked {price} euros. The shop takes off {off} per cent and then adds {tax}"
            " per cent tax. What does the customer pay? Would the other order change anything?"
        )
        lines = [
            f"Discount: {off} per cent of {price} is {decimal(Fraction(price * off, 100), 2)}, "
            f"leaving {decimal(after, 2)}.",
            f"Tax: {tax} per cent of that is {decimal(after * tax / 100, 2)}.",
            f"To pay: {decimal(final, 2)} euros, rounded to cents.",
            f"In one step the factor is {decimal(Fraction(100 - off, 100), 2)} * "
            f"{decimal(Fraction(100 + tax, 100), 2)} = "
            f"{decimal(Fraction((100 - off) * (100 + tax), 10000), 4)}.",
            "Factors may be exchanged, so the order makes no difference to the customer.",
        ]
    else:
        up = rng.choice([10, 20, 25, 30])
        raised = Fraction(price * (100 + up), 100)
        back = raised * (100 - up) / 100
        need = 100 * Fraction(up, 100 + up)
        ask = f"A rent of {price} is raised by {up} per cent and later lowered by {up} per cent. Is"
        ask += " it what it was before? Which reduction would restore it?"
        lines = [
            f"After the rise: {price} * {decimal(Fraction(100 + up, 100), 2)} = "
            f"{decimal(raised, 2)}.",
            f"After the cut: {decimal(raised, 2)} * {decimal(Fraction(100 - up, 100), 2)} = "
            f"{decimal(back, 2)}.",
            f"That is {decimal(price - back, 2)} less than at first, since the second percentage is"
            " taken of a larger amount.",
            f"To return to {price} one must take off {up}/{100 + up} of the raised rent, that is "
            f"{need} per cent, about {decimal(need, 2)}.",
        ]
    return Piece("Percentages", ask, "\n".join(lines))


def mixtures(rng: Random, turn: int) -> Piece:
    """Mix two solutions, or let two taps fill a tank."""
    if turn % 2 == 0:
        lo, hi = rng.choice([5, 10, 15]), rng.choice([40, 50, 60])
        target = rng.choice([20, 25, 30])
        total = 10 * rng.randint(3, 9)
        x = Fraction(total * (target - lo), hi - lo)
        ask = (
            f"How much {hi} per cent and how much {lo} per cent salt solution give {total} litres "
            f"at {target} per cent?"
        )
        lines = [
            f"Let x litres of the strong one be used, so {total} - x of the weak one.",
            f"Balance of salt in hundredths: {hi}x + {lo}({total} - x) = {target} * {total} = "
            f"{target * total}.",
            f"Expand: {hi - lo}x + {lo * total} = {target * total}.",
            f"So {hi - lo}x = {target * total - lo * total} and x = {x}.",
            f"Use {x} litres of the strong and {total - x} litres of the weak solution.",
            f"Salt: {hi} * {x} + {lo} * {total - x} = {hi * x + lo * (total - x)}, in order.",
        ]
        return Piece("Mixtures", ask, "\n".join(lines))
    a, b = rng.sample([3, 4, 5, 6, 8, 10, 12], 2)
    rate = Fraction(1, a) + Fraction(1, b)
    alone = rng.choice([1, 2])
    rest = (1 - Fraction(alone, a)) / rate
    ask = (
        f"One pipe fills a basin in {a} hours, another in {b} hours. How long do both take? And if "
        f"the first runs alone for {alone} h before the second is opened?"
    )
    lines = [
        f"In one hour they fill 1/{a} + 1/{b} = {rate} of the basin.",
        f"Together they need 1 / ({rate}) = {1 / rate} hours, about {decimal(60 / rate, 0)} "
        "minutes.",
        f"Running alone for {alone} h, the first fills {Fraction(alone, a)}; what remains is "
        f"{1 - Fraction(alone, a)}.",
        f"Both then need ({1 - Fraction(alone, a)}) / ({rate}) = {rest} hours more.",
        f"Measured from the start this is {alone + rest} hours.",
    ]
    return Piece("Pipes", ask, "\n".join(lines))


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
    return Piece("Number bases", ask, "\n".join(lines))


def remainders(rng: Random, turn: int) -> Piece:
    """Solve simultaneous congruences by sieving."""
    m1, m2, m3 = [(3, 5, 7), (4, 5, 9), (3, 7, 8), (5, 7, 11)][turn % 4]
    n = rng.randint(m1 * m2, m1 * m2 * m3 - 1)
    r1, r2, r3 = n % m1, n % m2, n % m3
    ask = pick(
        [
            f"Find the smallest natural number that leaves {r1} on division by {m1}, {r2} on "
            f"division by {m2} and {r3} on division by {m3}.",
            f"A basket of eggs: in groups of {m1}, {r1} remain; in groups of {m2}, {r2} remain; in "
            f"groups of {m3}, {r3} remain. What is the least number of eggs?",
        ],
        turn,
    )
    first = [k for k in range(m2 * m3) if k % m3 == r3][:m2]
    pair = next(k for k in first if k % m2 == r2)
    second = [pair + j * m2 * m3 for j in range(m1)]
    lines = [
        f"Start with the largest modulus. Remainder {r3} mod {m3}: {', '.join(map(str, first))}.",
        f"Modulo {m2} these leave {', '.join(str(k % m2) for k in first)}. We want {r2}, so the "
        f"number is {pair} modulo {m2 * m3}.",
        f"Continue in steps of {m2 * m3}: {', '.join(map(str, second))}.",
        f"Modulo {m1} they leave {', '.join(str(k % m1) for k in second)}; {r1} is wanted.",
        f"The answer is {n}. All others differ from it by multiples of {m1} * {m2} * {m3} = "
        f"{m1 * m2 * m3}.",
    ]
    return Piece("Simultaneous remainders", ask, "\n".join(lines))


def compound_interest(rng: Random, turn: int) -> Piece:
    """Follow a balance or a loan from year to year, in whole cents."""
    rate = rng.choice([2, 3, 4, 5, 6])
    cents = 100 * 50 * rng.randint(20, 120)
    start = cents
    lines = []
    if turn % 2 == 0:
        for year in range(1, 6):
            interest = (cents * rate + 50) // 100
            lines.append(
                f"Year {year}: {cents / 100:.2f} earns {interest / 100:.2f} and becomes "
                f"{(cents + interest) / 100:.2f}."
            )
            cents += interest
        simple = start + 5 * start * rate // 100
        ask = f"{start // 100} crowns are saved at {rate} per cent, compounded yearly and rounded "
        ask += "to hundredths. What is the balance after five years? Compare with simple interest."
        lines += [
            f"Simple interest would give {start // 100} * (1 + 5 * {rate}/100) = "
            f"{simple / 100:.2f}.",
            f"Interest on interest amounts to {(cents - simple) / 100:.2f} crowns.",
        ]
        return Piece("Compound interest", ask, "\n".join(lines))
    pay = start // 4 // 100 * 100
    ask = (
        f"A loan of {start // 100} crowns carries {rate} per cent a year. At the end of each year "
    )
    ask += f"{pay // 100} crowns are paid back. Make the schedule."
    year = 0
    paid = 0
    while cents:
        year += 1
        interest = (cents * rate + 50) // 100
        amount = min(pay, cents + interest)
        after = cents + interest - amount
        lines.append(
            f"Year {year}: debt {cents / 100:.2f}, interest {interest / 100:.2f}, payment "
            f"{amount / 100:.2f}, left {after / 100:.2f}."
        )
        cents = after
        paid += amount
    lines.append(
        f"The payments add up to {paid / 100:.2f}, so the loan cost {(paid - start) / 100:.2f}."
    )
    return Piece("A repayment plan", ask, "\n".join(lines))


def recurrence(rng: Random, turn: int) -> Piece:
    """Tabulate a recurrence and verify its closed form."""
    if turn % 2 == 0:
        r, s = rng.choice([(2, 3), (1, 4), (2, 5), (-1, 3), (-2, 3), (1, 3)])
        a, b = rng.randint(1, 4), rng.randint(1, 3)
        seq = [a * r**k + b * s**k for k in range(7)]
        p, q = r + s, -r * s
        rule = poly([p], "x") + "a(n-1) " + (f"+ {q}" if q > 0 else f"- {-q}") + "a(n-2)"
        rule = rule[1:] if rule.startswith("1a") else rule
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
        return Piece("A recurrence", ask, "\n".join(lines))
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
    return Piece("Tilings of a strip", ask, "\n".join(lines))


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
        f"The last entry is 0, so the division leaves nothing over: {poly(f)} = (x {signed(-r)})"
        f"({poly(row[:-1])}).",
        f"The quotient splits because {s} {signed(t)} = {s + t} and {s} * ({t}) = {s * t}: it "
        f"equals (x {signed(-s)})(x {signed(-t)}).",
        f"The zeros are {join_and([str(k) for k in sorted((r, s, t))])}.",
    ]
    return Piece("Horner's scheme", ask, "\n".join(lines))


def inclusion_exclusion(rng: Random, turn: int) -> Piece:
    """Count with overlapping sets."""
    if turn % 2 == 0:
        n = 10 * rng.randint(9, 40)
        p, q, r = rng.choice([(2, 3, 5), (2, 3, 7), (2, 5, 7), (3, 5, 7)])
        one = [n // k for k in (p, q, r)]
        two = [n // k for k in (p * q, p * r, q * r)]
        three = n // (p * q * r)
        union = sum(one) - sum(two) + three
        ask = f"How many integers from 1 to {n} are divisible by none of {p}, {q} and {r}?"
        lines = [
            f"Multiples of {p}: {one[0]}; of {q}: {one[1]}; of {r}: {one[2]}.",
            f"Multiples of {p * q}: {two[0]}; of {p * r}: {two[1]}; of {q * r}: {two[2]}.",
            f"Multiples of {p * q * r}: {three}.",
            f"At least one divisor: {sum(one)} - {sum(two)} + {three} = {union}.",
            f"None of them: {n} - {union} = {n - union}.",
        ]
        return Piece("Inclusion and exclusion", ask, "\n".join(lines))
    both, only_a, only_b, none = (rng.randint(3, 15) for _ in range(4))
    total = both + only_a + only_b + none
    ask = (
        f"Of {total} guests, {both + only_a} speak French and {both + only_b} speak German; {none} "
        "speak neither. How many speak both? If a guest speaks French, how likely is German too?"
    )
    lines = [
        f"{total} - {none} = {total - none} guests speak at least one of the two.",
        f"Adding the groups gives {both + only_a} + {both + only_b} = "
        f"{2 * both + only_a + only_b}, in which bilingual guests are counted twice.",
        f"So {2 * both + only_a + only_b} - {total - none} = {both} speak both.",
        f"Only French: {only_a}. Only German: {only_b}.",
        f"Among the French speakers the share is {ratio(both, both + only_a)}.",
    ]
    return Piece("Two overlapping groups", ask, "\n".join(lines))


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
        return Piece("Matrix product", ask, "\n".join(lines))
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
    return Piece("Inverse matrix", ask, "\n".join(lines))


def solids(rng: Random, turn: int) -> Piece:
    """Volumes and surfaces of boxes, cylinders, cones and spheres."""
    if turn % 2 == 0:
        a, b, c = rng.randint(3, 12), rng.randint(3, 12), rng.randint(3, 12)
        k = rng.randint(2, 4)
        diag = a * a + b * b + c * c
        ask = f"A box measures {a} cm, {b} cm and {c} cm. Find volume, surface and the square of "
        ask += f"its diagonal. What happens when all edges are made {k} times as long?"
        surface = 2 * (a * b + b * c + a * c)
        lines = [
            f"Volume: {a} * {b} * {c} = {a * b * c} cubic centimetres.",
            f"Surface: 2 * ({a * b} + {b * c} + {a * c}) = {surface} square centimetres.",
            f"Diagonal squared: {a * a} + {b * b} + {c * c} = {diag}; the diagonal is about "
            f"{math.sqrt(diag):.2f} cm.",
            f"Enlarged {k} times, the volume grows by {k}^3 = {k**3} to {k**3 * a * b * c}.",
            f"The surface grows by {k}^2 = {k * k} to {k * k * surface}.",
        ]
        return Piece("A box", ask, "\n".join(lines))
    r, h = rng.randint(2, 9), 3 * rng.randint(2, 6)
    ask = f"A cylinder, a cone and a hemisphere share the radius {r} cm; cylinder and cone are {h} "
    ask += "cm high. Compare their volumes, keeping pi as a symbol."
    ball = Fraction(2 * r**3, 3)
    lines = [
        f"Cylinder: pi * {r}^2 * {h} = {r * r * h} pi.",
        f"Cone: a third of it, {r * r * h // 3} pi.",
        f"Hemisphere: 2/3 * pi * {r}^3 = {ball} pi.",
        f"The ratio of cone to hemisphere is {Fraction(r * r * h, 3) / ball}.",
        f"In cubic centimetres, rounded: {math.pi * r * r * h:.1f}, {math.pi * r * r * h / 3:.1f} "
        f"and {math.pi * float(ball):.1f}.",
        f"The curved surface of the cylinder is 2 * pi * {r} * {h} = {2 * r * h} pi.",
    ]
    return Piece("Round solids", ask, "\n".join(lines))


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


# ------------------------------------------------------------------------------- instructions

PEOPLE = (
    "Amara Okafor", "Bruno Keller", "Chiara Conti", "Dmitri Volkov", "Elif Aydin", "Farid Haddad",
    "Greta Lindqvist", "Hugo Martins", "Ines Duarte", "Jonas Berg", "Keiko Mori", "Liam Doyle",
    "Marta Nowak", "Noor Rahman", "Oskar Toivonen", "Priya Nair", "Quentin Roux", "Rosa Vidal",
    "Samir Aziz", "Tilda Holm",
)  # fmt: skip
TOWNS = (
    "Porto", "Ghent", "Tartu", "Bergen", "Graz", "Turin", "Lublin", "Cork", "Nantes", "Aarhus",
    "Split", "Brno", "Uppsala", "Bilbao", "Leiden",
)  # fmt: skip
JOBS = (
    "baker", "surveyor", "nurse", "translator", "welder", "archivist", "gardener", "pilot",
    "potter", "chemist", "librarian", "carpenter",
)  # fmt: skip
GOODS = (
    "oats", "lentils", "olive oil", "black tea", "honey", "rice", "dried figs", "walnuts", "flour",
    "mustard", "raisins", "barley", "salt", "vinegar",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SMALL_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SENTENCES = (
    "The ferry leaves the old harbour at noon and returns before dark.",
    "Nobody noticed that the smallest lantern had gone out.",
    "After the storm we found three blue bottles among the reeds.",
    "My aunt keeps bees behind the chapel and sells the honey in spring.",
    "A quiet librarian repaired the torn map with rice paste and patience.",
    "Every Thursday the market fills with tulips, cheese and gossip.",
    "The engineer measured the cracked beam twice and ordered a new one.",
    "Seven geese crossed the road while the bus driver waited politely.",
    "Under the stairs there is a box of letters tied with green string.",
    "The orchestra tuned its instruments, and then the lights failed.",
    "Our neighbour paints boats in winter because the river is frozen.",
    "Warm bread and cold butter made the long walk worthwhile.",
    "The museum lends its telescope to schools on cloudless evenings.",
    "Two sisters opened a workshop for broken clocks near the station.",
)


def long_date(day: dt.date) -> str:
    """Write a date as "7 March 2021", whatever the locale."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def random_day(rng: Random) -> dt.date:
    """Return a day between 1950 and 2030."""
    return dt.date(1950, 1, 1) + dt.timedelta(days=rng.randrange(29_200))


def number_words(n: int) -> str:
    """Spell out an integer below ten thousand."""
    if n < 20:
        return SMALL_NUMBERS[n]
    if n < 100:
        return TENS[n // 10 - 2] + (f"-{SMALL_NUMBERS[n % 10]}" if n % 10 else "")
    size, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    head, rest = divmod(n, size)
    joint = " and " if rest < 100 else " "
    return f"{number_words(head)} {name}" + (joint + number_words(rest) if rest else "")


def roman(n: int) -> str:
    """Write a number in Roman numerals."""
    out = ""
    for value, text in (
        (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
        (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
    ):  # fmt: skip
        count, n = divmod(n, value)
        out += text * count
    return out


def staff(rng: Random, n: int) -> list[dict[str, str | int]]:
    """Invent ``n`` people with a town, a job and a year."""
    names, towns, jobs = rng.sample(PEOPLE, n), rng.sample(TOWNS, n), rng.sample(JOBS, n)
    return [
        {"name": a, "town": b, "job": c, "since": rng.randint(1994, 2024)}
        for a, b, c in zip(names, towns, jobs, strict=True)
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Make a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(" --- " for _ in header) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def sort_list(rng: Random, turn: int) -> Piece:
    """Sort names by a key that changes with the turn."""
    names = rng.sample(PEOPLE, 7)
    how: list[tuple[str, Callable[[str], object], bool]] = [
        ("alphabetically by surname", lambda s: s.split()[1], False),
        ("by the length of the full name without the space, shortest first; equal lengths go in "
         "alphabetical order", lambda s: (len(s) - 1, s), False),
        ("in reverse alphabetical order of the first name", lambda s: s, True),
        ("by the last letter of the surname, and alphabetically where that letter is the same",
         lambda s: (s[-1], s), False),
    ]  # fmt: skip
    text, key, backwards = how[turn % len(how)]
    done = sorted(names, key=key, reverse=backwards)  # type: ignore[arg-type]
    ask = f"Sort the following names {text}. Number the result.\n" + "; ".join(names)
    return Piece("Sorting", ask, "\n".join(f"{i}. {n}" for i, n in enumerate(done, 1)))


def records_to_json(rng: Random, turn: int) -> Piece:
    """Turn sentences about people into JSON."""
    people = staff(rng, 3)
    told = " ".join(
        pick(
            [
                f"{p['name']} has worked as a {p['job']} in {p['town']} since {p['since']}.",
                f"Since {p['since']}, {p['town']} has had a {p['job']} called {p['name']}.",
            ],
            i + turn,
        )
        for i, p in enumerate(people)
    ).replace(" a archivist", " an archivist")
    order = ["name", "job", "town", "since"] if turn % 2 else ["name", "since", "town", "job"]
    rows = [{k: p[k] for k in order} for p in people]
    ask = (
        "Extract the people from this paragraph as a JSON array. Each object has the keys "
        f"{join_and(order)}, in that order; the year is a number. Output JSON only.\n\n{told}"
    )
    return Piece("Extraction to JSON", ask, json.dumps(rows, indent=2, ensure_ascii=False))


def to_table(rng: Random, turn: int) -> Piece:
    """Format comma-separated lines as a table with a total."""
    goods = rng.sample(GOODS, 5)
    rows = [(g, rng.randint(2, 30), rng.randint(80, 900)) for g in goods]
    raw = "\n".join(f"{g},{q},{p / 100:.2f}" for g, q, p in rows)
    ask = pick(
        [
            "Convert these lines (item, quantity, unit price) to a Markdown table. Add a column "
            "with the amount per line and a last row with the total.",
            "Below is an order in CSV form: item, number, price each. Present it as a table, "
            "sorted by line amount from high to low, and state the sum in the last row.",
        ],
        turn,
    )
    if turn % 2:
        rows.sort(key=lambda r: -r[1] * r[2])
    total = sum(q * p for _, q, p in rows)
    body: list[Sequence[object]] = [
        (g, q, f"{p / 100:.2f}", f"{q * p / 100:.2f}") for g, q, p in rows
    ]
    body.append(("Total", sum(q for _, q, _ in rows), "", f"{total / 100:.2f}"))
    return Piece("A table", f"{ask}\n{raw}", table(["Item", "Quantity", "Price", "Amount"], body))


def count_words(rng: Random, turn: int) -> Piece:
    """Count words, letters, vowels and long words."""
    picked = rng.sample(SENTENCES, 3)
    bare = [[w.strip(",.") for w in s.split()] for s in picked]
    rows = []
    for s, words in zip(picked, bare, strict=True):
        letters = sum(c.isalpha() for c in s)
        vowels = sum(c in "aeiou" for c in s.lower())
        rows.append((len(words), letters, vowels, max(words, key=len)))
    ask = "For each sentence report the number of words, letters and vowels (a, e, i, o, u) and "
    ask += "the first of its longest words, then say which sentence has the most words (the first "
    ask += "if several do).\n" + "\n".join(f"({c}) {s}" for c, s in zip("abc", picked, strict=True))
    if turn % 2:
        answer = table(
            ["Sentence", "Words", "Letters", "Vowels", "Longest word"],
            [(c, *r) for c, r in zip("abc", rows, strict=True)],
        )
    else:
        answer = "\n".join(
            f"({c}) {w} words, {n} letters, {v} of them vowels; the longest word is "
            f'"{longest}" with {len(longest)} letters.'
            for c, (w, n, v, longest) in zip("abc", rows, strict=True)
        )
    most = max(range(3), key=lambda i: (rows[i][0], -i))
    answer += f"\n\nSentence ({'abc'[most]}) has the most words, {rows[most][0]}."
    return Piece("Counting", ask, answer)


def convert_dates(rng: Random, turn: int) -> Piece:
    """Rewrite dates in another format, with the weekday."""
    days = sorted(random_day(rng) for _ in range(5))
    shuffled = rng.sample(days, len(days))
    forms: list[Callable[[dt.date], str]] = [
        lambda d: f"{d.month}/{d.day}/{d.year}",
        long_date,
        lambda d: f"{MONTHS[d.month - 1][:3]} {d.day:02d}, {d.year}",
    ]
    source = forms[turn % 3]
    note = ["month/day/year", "day, month name, year", "short month, day, year"][turn % 3]
    ask = f"These dates are written as {note}. Put them in ISO form (YYYY-MM-DD), oldest first, and"
    ask += (
        " add the weekday of each. End with the number of days from the first to the last.\n"
        + "\n".join(f"- {source(d)}" for d in shuffled)
    )
    lines = [f"- {d.isoformat()}, {WEEKDAYS[d.weekday()]}" for d in days]
    span = (days[-1] - days[0]).days
    lines.append(f"Between the first and the last date lie {span} days.")
    return Piece("Dates", ask, "\n".join(lines))


def summarise(rng: Random, turn: int) -> Piece:
    """Sum up a log of readings in a set number of sentences."""
    place = rng.choice(TOWNS)
    start = random_day(rng)
    values = [rng.randint(-4, 24) for _ in range(7)]
    rain = [rng.choice([0, 0, 1, 3, 6, 11]) for _ in range(7)]
    days = [start + dt.timedelta(days=i) for i in range(7)]
    log = "\n".join(
        f"{d.isoformat()} noon {v} C rain {r} mm"
        for d, v, r in zip(days, values, rain, strict=True)
    )
    hot, cold = max(values), min(values)
    dry = sum(r == 0 for r in rain)
    mean = decimal(Fraction(sum(values), 7), 1)
    first = f"During the week from {long_date(days[0])} to {long_date(days[-1])}, the noon "
    first += f"temperature in {place} lay between {cold} and {hot} degrees, with a mean of {mean}."
    second = f"In total {sum(rain)} millimetres of rain fell, and "
    second += f"{number_words(dry)} of the seven days stayed dry."
    warm = [WEEKDAYS[d.weekday()] for d, v in zip(days, values, strict=True) if v == hot]
    third = f"The highest reading was taken on {join_and(warm)}."
    count = 2 + turn % 2
    ask = f"Summarise this weather log from {place} in exactly {number_words(count)} sentences. "
    ask += "Mention the range and mean of the temperature, the total rain and the number of dry "
    ask += "days" + (", and name the weekday of the highest reading" if count == 3 else "")
    return Piece("A summary", f"{ask}.\n{log}", " ".join([first, second, third][:count]))


def passive_voice(rng: Random, turn: int) -> Piece:
    """Rewrite active sentences in the passive, or the other way round."""
    actions = [
        ("repaired", "the church organ"), ("translated", "the old contract"),
        ("painted", "the garden fence"), ("sold", "the wooden boat"),
        ("photographed", "the lunar eclipse"), ("wrote", "the annual report"),
        ("found", "the missing key"), ("designed", "the new bridge"), ("baked", "the rye bread"),
        ("drew", "the street map"), ("stole", "the brass bell"), ("planted", "the walnut tree"),
    ]  # fmt: skip
    participle = {"wrote": "written", "drew": "drawn", "stole": "stolen"}
    chosen = rng.sample(actions, 5)
    names = rng.sample(PEOPLE, 5)
    active = [f"{n} {v} {o}." for n, (v, o) in zip(names, chosen, strict=True)]
    passive = [
        f"{o[0].upper()}{o[1:]} was {participle.get(v, v)} by {n}."
        for n, (v, o) in zip(names, chosen, strict=True)
    ]
    if turn % 2:
        ask = "Rewrite each sentence in the active voice.\n" + "\n".join(passive)
        return Piece("Active voice", ask, "\n".join(active))
    ask = "Rewrite each sentence in the passive voice and keep the agent.\n" + "\n".join(active)
    return Piece("Passive voice", ask, "\n".join(passive))


def extract_contacts(rng: Random, turn: int) -> Piece:
    """Pull addresses, amounts and reference numbers out of a letter."""
    a, b, c = rng.sample(PEOPLE, 3)
    mails = [f"{n.split()[0].lower()}.{n.split()[1].lower()}@example.org" for n in (a, b, c)]
    amounts = [rng.randint(40, 900) for _ in range(2)]
    ref = f"{rng.choice('ABCDEFG')}{rng.randint(1000, 9999)}-{rng.randint(10, 99)}"
    day = random_day(rng)
    letter = pick(
        [
            f"Dear colleagues, {a} ({mails[0]}) has asked for a refund of {amounts[0]} euros under "
            f"reference {ref}. Please send copies to {mails[1]} and, once the fee of {amounts[1]} "
            f"euros has been booked on {long_date(day)}, to {mails[2]} as well.",
            f"Minutes of {long_date(day)}: {b} will answer {mails[0]}; file {ref} stays open. The "
            f"hall costs {amounts[0]} euros, catering {amounts[1]} euros. Questions go to "
            f"{mails[1]} or {mails[2]}.",
        ],
        turn,
    )
    ask = "List every e-mail address, every amount, the reference number and the date that occur "
    ask += f'in the text, one kind per line. Do not add anything else.\n\n"{letter}"'
    seen = sorted(mails, key=letter.index)
    answer = (
        f"E-mail: {', '.join(seen)}\nAmounts: {amounts[0]} euros, {amounts[1]} euros\n"
        f"Reference: {ref}\nDate: {day.isoformat()}"
    )
    return Piece("Finding details", ask, answer)


def constrained_note(rng: Random, turn: int) -> Piece:
    """Write a notice that meets numbered constraints, found by search."""
    name = rng.choice(PEOPLE)
    place, day = rng.choice(TOWNS), rng.choice(WEEKDAYS)
    thing = rng.choice(["reading circle", "repair workshop", "choir rehearsal", "chess evening"])
    slots = [
        [f"Join our {thing} in {place}", f"Come to the {thing} in {place} with your friends",
         f"Everyone is warmly welcome at the {thing} in {place}"],
        [f"this {day}", f"on the evening of {day}", f"{day} at seven sharp"],
        [f"{name} will open the doors", f"{name} keeps the key and will open the doors early",
         f"Ask {name} if you need help with the stairs"],
        ["Tea is free", "Tea and cake are free for all who help afterwards",
         "There will be tea, and donations are welcome"],
    ]  # fmt: skip
    options = [f"{s[0]} {s[1]}. {s[2]}. {s[3]}." for s in itertools.product(*slots)]
    text = rng.choice(options)
    words = text.rstrip(".").split()
    count = len(words)
    commas = text.count(",")
    ask = (
        f"Write a notice for a {thing}. Conditions: (1) exactly {count} words; (2) three sentences;"
        f' (3) the first word is "{words[0]}"; (4) name {place}, {day} and {name}; (5) '
        f'{"no commas" if not commas else f"exactly {commas} comma"}; (6) the word "tea" occurs, '
        "in any case. Add a line that proves the length."
    )
    check = pick(
        [
            f"Check: {count} words, 3 sentences, starts with {words[0]}, {commas} commas.",
            f"(Counted by sentence: {' + '.join(str(len(p.split())) for p in text.split('.')[:3])}"
            f" = {count} words.)",
        ],
        turn,
    )
    return Piece("A notice under constraints", ask, f"{text}\n{check}")


def acrostic(rng: Random, turn: int) -> Piece:
    """Pick words whose initials spell a given word."""
    bank = {
        "a": "amber", "b": "birch", "c": "candle", "d": "dune", "e": "ember", "f": "fern",
        "g": "granite", "h": "harbour", "i": "ivory", "k": "kettle", "l": "lantern", "m": "meadow",
        "n": "nettle", "o": "orchard", "p": "pebble", "r": "river", "s": "saddle", "t": "thistle",
        "u": "umbrella", "v": "velvet", "w": "willow",
    }  # fmt: skip
    word = ["window", "planet", "bridge", "silver", "market", "garden"][turn % 6]
    offered = sorted({*(bank[c] for c in word), *rng.sample(sorted(bank.values()), 6)})
    rng.shuffle(offered)
    lines = [f"{c.upper()} is for {bank[c]}" for c in word]
    letters = sum(len(bank[c]) for c in word)
    ask = f"From this list choose words whose first letters spell {word.upper()}, in order, and "
    ask += "write one line per letter. Then state how many letters the chosen words have together "
    ask += f"and which offered words were left over.\nWords: {', '.join(offered)}"
    left = [w for w in offered if w not in {bank[c] for c in word}]
    lines.append(f"Letters in all: {letters}")
    lines.append(f"Left over: {', '.join(left) if left else 'none'}")
    return Piece("Initials", ask, "\n".join(lines))


def schedule(rng: Random, turn: int) -> Piece:
    """Turn durations into a timetable."""
    plans = [
        ("bake a loaf", [("mix the dough", 15), ("let it rise", 90), ("shape the loaf", 10),
                         ("let it rest", 40), ("bake", 45), ("cool on a rack", 30)]),
        ("run a first-aid course", [("greet the group", 10), ("show the recovery position", 25),
                                    ("practise in pairs", 35), ("take a break", 15),
                                    ("dress wounds", 40), ("hold the quiz", 20)]),
        ("service a bicycle", [("wash the frame", 20), ("clean the chain", 25),
                               ("true the wheels", 35), ("adjust the brakes", 15),
                               ("oil the moving parts", 10), ("ride a test lap", 12)]),
        ("hang an exhibition", [("unpack the crates", 50), ("measure the walls", 30),
                                ("drill and plug", 45), ("hang the frames", 60),
                                ("set the lights", 35), ("place the labels", 20)]),
    ]  # fmt: skip
    goal, steps = plans[turn % len(plans)]
    shift = rng.choice([0, 5, 10])
    steps = [(s, m + shift) for s, m in steps]
    begin = 60 * rng.randint(7, 11) + rng.choice([0, 15, 30, 45])

    def clock(minute: int) -> str:
        return f"{minute // 60:02d}:{minute % 60:02d}"

    given = "; ".join(f"{s} ({m} min)" for s, m in steps)
    ask = f"Make a numbered procedure to {goal}, starting at {clock(begin)}. Give start and end of "
    ask += f"each step and the total time. The steps in order: {given}."
    lines = []
    now = begin
    for i, (s, m) in enumerate(steps, 1):
        lines.append(f"{i}. {clock(now)} to {clock(now + m)}: {s}")
        now += m
    hours, mins = divmod(now - begin, 60)
    lines.append(f"Total: {now - begin} minutes, that is {hours} h {mins} min.")
    return Piece("A timed procedure", ask, "\n".join(lines))


def scale_recipe(rng: Random, turn: int) -> Piece:
    """Scale a recipe to another number of servings."""
    recipes = [
        ("lentil soup", 4, [("red lentils", 240, "g"), ("carrots", 2, "pieces"),
                            ("stock", 1000, "ml"), ("cumin", 4, "g"), ("lemon juice", 30, "ml")]),
        ("pancakes", 6, [("flour", 300, "g"), ("milk", 540, "ml"), ("eggs", 3, "pieces"),
                         ("sugar", 24, "g"), ("butter", 45, "g")]),
        ("bean salad", 8, [("white beans", 800, "g"), ("tomatoes", 12, "pieces"),
                           ("olive oil", 96, "ml"), ("parsley", 40, "g"), ("salt", 8, "g")]),
        ("rice pudding", 5, [("rice", 250, "g"), ("milk", 1250, "ml"), ("sugar", 75, "g"),
                             ("cinnamon", 5, "g"), ("raisins", 100, "g")]),
    ]  # fmt: skip
    dish, base, parts = recipes[turn % len(recipes)]
    want = base * rng.choice([2, 3]) if turn % 2 else base + rng.choice([1, 2, 3])
    scale = Fraction(want, base)
    given = ", ".join(f"{n} {i}" if u == "pieces" else f"{n} {u} {i}" for i, n, u in parts)
    ask = f"This recipe for {dish} serves {base}: {given}. Rewrite the list for {want} people, with"
    ask += " amounts rounded to one decimal place, and state the factor."
    lines = [f"Factor: {ratio(want, base)}"]
    for i, n, u in parts:
        lines.append(f"- {i}: {n} * {scale} = {decimal(n * scale, 1)} {u}")
    return Piece("Scaling a recipe", ask, "\n".join(lines))


def name_styles(rng: Random, turn: int) -> Piece:
    """Rewrite phrases as identifiers."""
    phrases = rng.sample(
        [
            "last seen date", "total price before tax", "is user active", "max retry count",
            "default output folder", "row index in page", "first free seat", "has valid ticket",
            "average queue length", "next departure time", "file size in bytes", "city of birth",
        ],
        5,
    )  # fmt: skip
    rows = []
    for p in phrases:
        w = p.split()
        camel = w[0] + "".join(x.capitalize() for x in w[1:])
        rows.append((p, "_".join(w), camel, "-".join(w), "_".join(w).upper()))
    if turn % 2:
        ask = "Write each phrase in snake_case, camelCase, kebab-case and as an upper-case constant"
        ask += ". Use a table.\n" + "\n".join(phrases)
        head = ["Phrase", "snake", "camel", "kebab", "constant"]
        return Piece("Identifiers", ask, table(head, rows))
    ask = "Turn these phrases into snake_case keys of a YAML mapping whose values are the same "
    ask += "phrases as titles, with every word capitalised.\n" + ", ".join(phrases)
    answer = "\n".join(f"{r[1]}: " + " ".join(x.capitalize() for x in r[0].split()) for r in rows)
    return Piece("Keys and titles", ask, answer)


def remove_duplicates(rng: Random, turn: int) -> Piece:
    """Remove duplicates while ignoring case, and report them."""
    words = rng.sample(GOODS, 7)
    doubled = rng.sample(words, 3)
    raw = [*words, *(w.upper() if i % 2 else w.capitalize() for i, w in enumerate(doubled))]
    rng.shuffle(raw)
    seen: list[str] = []
    for w in raw:
        if w.lower() not in seen:
            seen.append(w.lower())
    ask = "Clean this list: ignore case, drop repeated entries and keep the order of first "
    ask += "appearance"
    if turn % 2:
        ask = (
            "Clean this list: ignore case, drop repeated entries and sort what remains from A to Z"
        )
        seen.sort()
    ask += ". Say which entries were repeated and how many were removed.\n" + ", ".join(raw)
    answer = f"Result ({len(seen)} entries): {', '.join(seen)}\n"
    answer += f"Repeated: {', '.join(sorted(doubled))}\nRemoved: {len(raw) - len(seen)} entries"
    return Piece("Duplicates", ask, answer)


def group_items(rng: Random, turn: int) -> Piece:
    """Group words by category or by a property."""
    groups = {
        "animals": ["heron", "badger", "trout", "lynx", "moth"],
        "tools": ["chisel", "spanner", "plane", "rasp", "clamp"],
        "instruments": ["oboe", "cello", "lute", "bassoon", "zither"],
        "vessels": ["kayak", "barge", "schooner", "ferry", "tug"],
    }
    chosen = {k: rng.sample(v, 3) for k, v in groups.items()}
    flat = [w for v in chosen.values() for w in v]
    rng.shuffle(flat)
    if turn % 2 == 0:
        ask = f"Sort these words into {join_and(list(chosen))}, each group in alphabetical order: "
        ask += ", ".join(flat)
        answer = "\n".join(f"{k.capitalize()}: {', '.join(sorted(v))}" for k, v in chosen.items())
    else:
        by: dict[int, list[str]] = {}
        for w in sorted(flat):
            by.setdefault(len(w), []).append(w)
        ask = "Group these words by their number of letters, fewest first, and count each group: "
        ask += ", ".join(flat)
        answer = "\n".join(f"{n} letters ({len(by[n])}): {', '.join(by[n])}" for n in sorted(by))
    return Piece("Grouping", ask, answer)


def redact(rng: Random, turn: int) -> Piece:
    """Mask personal data in a message."""
    who = rng.sample(PEOPLE, 2)
    phone = f"0{rng.randint(20, 89)} {rng.randint(100, 999)} {rng.randint(1000, 9999)}"
    card = " ".join(str(rng.randint(1000, 9999)) for _ in range(4))
    text = pick(
        [
            f"{who[0]} called from {phone} about card {card}. {who[1]} rang back within an hour.",
            f"The parcel for {who[0]} was paid with {card}; ask {who[1]} or dial {phone}.",
            f"Please note the new number {phone} for {who[1]}. {who[0]} lost the card {card}.",
        ],
        turn,
    )
    ask = "Redact this message. Replace names by their initials, every digit of the phone number by"
    ask += " #, and all but the last four digits of the card by *. "
    ask += f"Then say how many digits were hidden.\n{text}"
    out = text.replace(phone, "".join("#" if c.isdigit() else c for c in phone))
    masked = "".join("*" if c.isdigit() else c for c in card[:-4]) + card[-4:]
    out = out.replace(card, masked)
    for n in who:
        out = out.replace(n, ".".join(p[0] for p in n.split()) + ".")
    hidden = sum(c.isdigit() for c in phone) + 12
    if out.endswith(".."):
        out = out[:-1]
    return Piece("Redaction", ask, f"{out.replace('.. ', '. ')}\n({hidden} digits were hidden.)")


def time_zones(rng: Random, turn: int) -> Piece:
    """Convert a meeting time between fixed offsets."""
    offices = rng.sample(
        [("Lagos", 60), ("Delhi", 330), ("Tokyo", 540), ("Lima", -300), ("Nairobi", 180),
         ("Kathmandu", 345), ("Bogota", -300), ("Brisbane", 600), ("Dubai", 240)], 4)  # fmt: skip
    day = random_day(rng)
    base = dt.datetime(day.year, day.month, day.day, rng.randint(0, 23), rng.choice([0, 15, 30]))
    ask = f"A call is set for {base:%H:%M} UTC on {day.isoformat()}. Give the local date and time"
    ask += (
        " in "
        + join_and(
            [
                f"{c} (UTC{'+' if m >= 0 else '-'}{abs(m) // 60}:{abs(m) % 60:02d})"
                for c, m in offices
            ]
        )
        + pick([". Order the cities by local time, latest first.", ". Use one bullet each."], turn)
    )
    if turn % 2 == 0:
        offices.sort(key=lambda x: (-x[1], x[0]))
    lines = []
    for c, m in offices:
        local = base + dt.timedelta(minutes=m)
        gap = (local.date() - day).days
        rel = {0: "the same day", 1: "the next day", -1: "the day before"}[gap]
        lines.append(f"- {c}: {local:%H:%M} on {local.date().isoformat()} ({rel})")
    return Piece("Time zones", ask, "\n".join(lines))


def true_or_false(rng: Random, turn: int) -> Piece:
    """Judge statements against a record."""
    p, q = ({k: str(v) for k, v in x.items()} for x in staff(rng, 2))
    y1, y2 = int(p["since"]), int(q["since"])
    if y1 == y2:
        y2 += 1
    record = (
        f"{p['name']}: {p['job']}, {p['town']}, hired {y1}.\n"
        f"{q['name']}: {q['job']}, {q['town']}, hired {y2}."
    )
    gap = abs(y1 - y2)
    claims = [
        (f"{p['name']} was hired before {q['name']}.", y1 < y2, f"the years are {y1} and {y2}"),
        (f"{q['name']} works in {p['town']}.", False, f"the record says {q['town']}"),
        (f"{gap} years lie between the two dates.", True, f"the difference is {gap}"),
        (f"{p['name']} is a {p['job']}.".replace(" a a", " an a"), True, "so it is stated"),
        (f"Both names have the same number of letters, {len(p['name']) - 1}.",
         len(p["name"]) == len(q["name"]),
         f"they have {len(p['name']) - 1} and {len(q['name']) - 1}"),
    ]  # fmt: skip
    rng.shuffle(claims)
    claims = claims[: 4 + turn % 2]
    ask = "Use only the record to decide whether each statement is true or false. Give a reason."
    ask += f"\n{record}\n" + "\n".join(f"{i}) {c}" for i, (c, _, _) in enumerate(claims, 1))
    answer = "\n".join(
        f"{i}) {'True' if ok else 'False'}: {why}." for i, (_, ok, why) in enumerate(claims, 1)
    )
    return Piece("True or false", ask, answer)


def config_convert(rng: Random, turn: int) -> Piece:
    """Convert settings between INI, JSON and environment variables."""
    data: dict[str, dict[str, object]] = {
        "server": {
            "host": f"node{rng.randint(2, 40)}.example.net",
            "port": rng.randint(2000, 9000),
        },
        "cache": {"enabled": rng.choice([True, False]), "minutes": rng.randint(5, 90)},
        "mail": {"sender": f"robot{rng.randint(1, 9)}@example.org", "retries": rng.randint(1, 6)},
    }

    def scalar(v: object) -> str:
        return str(v).lower() if isinstance(v, bool) else str(v)

    ini = "\n\n".join(
        f"[{s}]\n" + "\n".join(f"{k} = {scalar(v)}" for k, v in d.items()) for s, d in data.items()
    )
    body = json.dumps(data, indent=2)
    if turn % 3 == 0:
        return Piece(
            "INI to JSON",
            f"Convert this INI file to JSON with proper types.\n{ini}",
            body,
        )
    if turn % 3 == 1:
        return Piece(
            "JSON to INI", f"Rewrite this JSON as an INI file, one section per key.\n{body}", ini
        )
    env = "\n".join(
        f"APP_{s.upper()}_{k.upper()}={scalar(v)}" for s, d in data.items() for k, v in d.items()
    )
    ask = "Flatten these settings to environment variables with the prefix APP, upper case, parts "
    return Piece("Settings", f"{ask}joined by underscores.\n{ini}", env)


def spell_numbers(rng: Random, turn: int) -> Piece:
    """Spell out numbers or write them in Roman numerals."""
    ns = [rng.randint(21, 99), rng.randint(101, 999), rng.randint(1001, 3999), rng.randint(4, 20)]
    rng.shuffle(ns)
    if turn % 2 == 0:
        ask = f"Spell these numbers in English words, in rising order: {', '.join(map(str, ns))}."
        answer = "\n".join(f"{n}: {number_words(n)}" for n in sorted(ns))
    else:
        ask = f"Write {join_and([str(n) for n in ns])} in Roman numerals and in words, then add "
        ask += "them up and give the sum in both notations if it is below 4000."
        answer = "\n".join(f"{n} = {roman(n)} ({number_words(n)})" for n in ns)
        t = sum(ns)
        answer += f"\nSum: {t}" + (
            f" = {roman(t)} ({number_words(t)})" if t < 4000 else ", which is not below 4000"
        )
    return Piece("Numbers in words", ask, answer)


def edit_list(rng: Random, turn: int) -> Piece:
    """Follow a series of editing commands on a list."""
    items = rng.sample(GOODS, 8)
    current = items[:5]
    new1, new2 = items[5], items[6]
    log = []
    start = ", ".join(current)
    gone = rng.choice(current[1:4])
    steps = [f"append {new1}", f"remove {gone}", f"insert {new2} in second place"]
    current.append(new1)
    log.append(", ".join(current))
    current.remove(gone)
    log.append(", ".join(current))
    current.insert(1, new2)
    log.append(", ".join(current))
    if turn % 2:
        steps.append("reverse the list")
        current.reverse()
    else:
        steps.append("swap the first and the last entry")
        current[0], current[-1] = current[-1], current[0]
    log.append(", ".join(current))
    ask = f"Start with the list {start}. Carry out these commands one after another and show the "
    ask += "list after each: " + "; ".join(f"({i}) {s}" for i, s in enumerate(steps, 1))
    ask += ". Finally give the number of entries."
    answer = "\n".join(f"After ({i}): {s}" for i, s in enumerate(log, 1))
    return Piece("Editing a list", ask, f"{answer}\nThe list now has {len(current)} entries.")


def compare_products(rng: Random, turn: int) -> Piece:
    """Compare offers by unit price and by weight."""
    what = rng.choice(GOODS)
    shops = rng.sample(TOWNS, 3)
    offers = [(s, 50 * rng.randint(4, 40), rng.randint(150, 1900)) for s in shops]
    unit = [Fraction(p * 1000, g) / 100 for _, g, p in offers]
    ask = f"Three shops sell {what}: " + "; ".join(
        f"the {s} shop asks {p / 100:.2f} for {g} g" for s, g, p in offers
    )
    ask += ". " + pick(
        [
            "Which offer is cheapest per kilogram? Show the computation.",
            "Rank the offers by price per kilogram, name the cheapest and say how much dearer the "
            "last is than the first.",
        ],
        turn,
    )
    order = sorted(range(3), key=lambda i: unit[i])
    lines = [
        f"{offers[i][0]}: {offers[i][2] / 100:.2f} * 1000 / {offers[i][1]} = "
        f"{decimal(unit[i], 2)} per kg" + ("" if (unit[i] * 100).denominator == 1 else ", rounded")
        for i in order
    ]
    lines.append(f"Cheapest: {offers[order[0]][0]}.")
    if turn % 2:
        diff = unit[order[2]] - unit[order[0]]
        lines.append(f"Difference between last and first: {decimal(diff, 2)} per kg (rounded).")
    return Piece("Comparing offers", ask, "\n".join(lines))


def cipher(rng: Random, turn: int) -> Piece:
    """Shift letters, or write text backwards."""
    text = rng.choice(SENTENCES)
    if turn % 2 == 0:
        k = rng.randint(2, 12)
        low = "abcdefghijklmnopqrstuvwxyz"
        move = str.maketrans(
            low + low.upper(), low[k:] + low[:k] + low[k:].upper() + low[:k].upper()
        )
        ask = f"Encode the sentence by moving every letter {k} places forward in the alphabet, "
        ask += "wrapping round after z. Leave spaces and punctuation alone. Quote one "
        ask += f"word before and after as an example.\n{text}"
        sample = text.split()[1]
        answer = f'{text.translate(move)}\nExample: "{sample}" became "{sample.translate(move)}".'
        return Piece("A shifted alphabet", ask, answer)
    words = text.rstrip(".").split()
    ask = f"Reverse the order of the words, then give the initials of the result.\n{text}"
    back = [w.strip(",").lower() for w in reversed(words)]
    answer = " ".join(back) + "\nInitials: " + "".join(w[0] for w in back).upper()
    return Piece("Words in reverse", ask, answer)


def minutes_to_tasks(rng: Random, turn: int) -> Piece:
    """Turn minutes of a meeting into a task list."""
    names = rng.sample(PEOPLE, 4)
    chores = [
        "book the hall", "order the chairs", "update the website", "print the programme",
        "call the caterer", "collect the keys", "check the projector", "thank the donors",
    ]  # fmt: skip
    jobs = rng.sample(chores, 4)
    base = random_day(rng)
    due = [base + dt.timedelta(days=rng.randint(2, 40)) for _ in range(4)]
    prose = " ".join(
        pick(
            [
                f"{n} agreed to {j} by {long_date(d)}.",
                f"It was decided that {n} should {j}, no later than {long_date(d)}.",
            ],
            i + turn,
        )
        for i, (n, j, d) in enumerate(zip(names, jobs, due, strict=True))
    )
    order = sorted(range(4), key=lambda i: (due[i], names[i]))
    if turn % 2 == 0:
        ask = "Turn the minutes into a checklist ordered by deadline."
        answer = "\n".join(
            f"- [ ] {due[i].isoformat()}: {jobs[i]} ({names[i].split()[0]})" for i in order
        )
    else:
        ask = "Make a table of the tasks with the columns Due, Days left and Who, ordered by due "
        ask += f"date. Today is {long_date(base)}."
        answer = table(
            ["Due", "Days left", "Who", "Task"],
            [(due[i].isoformat(), (due[i] - base).days, names[i], jobs[i]) for i in order],
        )
        ask = ask.replace("Days left and Who", "Days left, Who and Task")
    return Piece("Minutes", f"{ask}\n\n{prose}", answer)


def rewrite_tone(rng: Random, turn: int) -> Piece:
    """Rewrite a formal message plainly, or a note formally."""
    name, town = rng.choice(PEOPLE), rng.choice(TOWNS)
    first = name.split()[0]
    day, clock = random_day(rng), f"{rng.randint(8, 17):02d}:{rng.choice(['00', '30'])}"
    order = rng.randint(1000, 9999)
    formal = [
        f"We regret to inform you that order {order} will not reach {town} before "
        f"{long_date(day)}. Should this cause inconvenience, kindly contact us. We remain at your "
        "disposal.",
        f"It is requested that you attend an appointment in {town} on {long_date(day)} at {clock}."
        " Your timely confirmation would be appreciated.",
        f"Please be advised that the {town} office will remain closed on {long_date(day)}. Normal "
        f"service shall resume thereafter at {clock}.",
    ]
    plain = [
        f"Hi {first}, sorry, order {order} won't get to {town} before {long_date(day)}. If that's a"
        " problem, just let us know. We're happy to help.",
        f"Hi {first}, can you come to {town} on {long_date(day)} at {clock}? Please let us know "
        "soon.",
        f"Hi {first}, the {town} office is shut on {long_date(day)}. After that we're back to "
        f"normal from {clock}.",
    ]
    i = turn % 3
    a = f"Dear {name}, {formal[i]}"
    if turn % 2 == 0:
        ask = "Rewrite the message in a friendly, plain tone. Keep every fact. Address the reader "
        return Piece("Plain language", f"{ask}by first name.\n\n{a}", plain[i])
    ask = f"Make this note formal, without contractions, addressed to {name}.\n\n{plain[i]}"
    return Piece("Formal language", ask, a)


def invoice_check(rng: Random, turn: int) -> Piece:
    """Find the wrong line in an invoice."""
    goods = rng.sample(GOODS, 5)
    rows = [(g, rng.randint(2, 12), rng.randint(3, 40)) for g in goods]
    bad = rng.randrange(5)
    slip = rng.choice([-10, -3, 3, 7, 10])
    lines, right = [], 0
    for i, (g, q, p) in enumerate(rows):
        amount = q * p
        right += amount
        lines.append(f"{q} x {g} at {p}: {max(1, amount + slip) if i == bad else amount}")
    g, q, p = rows[bad]
    wrong = max(1, q * p + slip)
    ask = pick(
        [
            "One line of this invoice is wrong. Find it, correct it and give the right total.",
            "Check the arithmetic below line by line; mark each as correct or wrong and add up.",
        ],
        turn,
    )
    if turn % 2 == 0:
        answer = f"The wrong line is {g}: {q} x {p} is {q * p}, not {wrong}.\n"
    else:
        answer = "".join(
            f"{n}: {a} * {b} = {a * b}, {'wrong in the invoice' if i == bad else 'correct'}\n"
            for i, (n, a, b) in enumerate(rows)
        )
    answer += "Right total: " + " + ".join(str(b * c) for _, b, c in rows) + f" = {right}."
    return Piece("Checking an invoice", f"{ask}\n" + "\n".join(lines), answer)


def filter_records(rng: Random, turn: int) -> Piece:
    """Select records that meet two conditions."""
    people = staff(rng, 7)
    limit = sorted(int(p["since"]) for p in people)[3]
    lines = [f"{p['name']};{p['town']};{p['job']};{p['since']}" for p in people]
    if turn % 2 == 0:
        hits = [p for p in people if int(p["since"]) >= limit]
        ask = f"From these records (name;town;job;year) keep those with a year of {limit} or later,"
        ask += " sorted by year and then by name, one per line as year, name, job and town."
        hits.sort(key=lambda p: (int(p["since"]), str(p["name"])))
        answer = "\n".join(f"{p['since']} {p['name']}, {p['job']} in {p['town']}" for p in hits)
    else:
        hits = [p for p in people if int(p["since"]) < limit or str(p["town"])[0] < "H"]
        ask = f"Keep each record whose year is before {limit} or whose town begins with a letter "
        ask += "from A to G. Show only names and towns, as a bulleted list in the given order."
        answer = "\n".join(f"* {p['name']} ({p['town']})" for p in hits)
    ask += " Close with the number of records kept."
    return Piece("Filtering", f"{ask}\n" + "\n".join(lines), f"{answer}\nRecords kept: {len(hits)}")


def merge_tables(rng: Random, turn: int) -> Piece:
    """Join two lists on a common key."""
    people = staff(rng, 4)
    ids = rng.sample(range(11, 99), 5)
    left = [f"{i}: {p['name']}" for i, p in zip(ids, people, strict=False)]
    hours = {i: rng.randint(4, 39) for i in [*ids[:3], ids[4]]}
    rng.shuffle(left)
    ask = "Join the two lists on the number. "
    ask += pick(
        [
            "Report numbers that occur on one side only.",
            "Make a table; write - where the "
            "hours are missing, and name hours without an owner below it.",
        ],
        turn,
    )
    ask += "\nNames\n" + "\n".join(left) + "\nHours\n"
    ask += "\n".join(f"{i} -> {h}" for i, h in sorted(hours.items()))
    named = dict(zip(ids, (str(p["name"]) for p in people), strict=False))
    if turn % 2 == 0:
        both = sorted(set(named) & set(hours))
        answer = "\n".join(f"{i}: {named[i]}, {hours[i]} hours" for i in both)
        answer += f"\nOnly in names: {ids[3]} ({named[ids[3]]})\nOnly in hours: {ids[4]}"
    else:
        answer = table(
            ["Number", "Name", "Hours"], [(i, named[i], hours.get(i, "-")) for i in sorted(named)]
        )
        answer += f"\nThe hours of number {ids[4]} belong to nobody on the list."
    return Piece("Joining lists", ask, answer)


INSTRUCTION_KINDS: tuple[Kind, ...] = (
    sort_list,
    records_to_json,
    to_table,
    count_words,
    convert_dates,
    summarise,
    passive_voice,
    extract_contacts,
    constrained_note,
    acrostic,
    schedule,
    scale_recipe,
    name_styles,
    remove_duplicates,
    group_items,
    redact,
    time_zones,
    true_or_false,
    config_convert,
    spell_numbers,
    edit_list,
    compare_products,
    cipher,
    minutes_to_tasks,
    rewrite_tone,
    invoice_check,
    filter_records,
    merge_tables,
)


# ------------------------------------------------------------------------------------- layouts


def math_worksheet(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out numbered exercises, each followed by its solution."""
    parts = [f"Worksheet {number + 1}: {join_and([p.title.lower() for p in pieces])}"]
    parts += [f"{i}. {p.ask}\n\nSolution. {p.answer}" for i, p in enumerate(pieces, 1)]
    return "\n\n".join(parts)


def math_solutions_last(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out all problems first and all solutions afterwards."""
    ask = "\n\n".join(f"Problem {c}. {p.ask}" for c, p in zip("ABCDEFGH", pieces, strict=False))
    out = "\n\n".join(
        f"Solution to {c}\n{p.answer}" for c, p in zip("ABCDEFGH", pieces, strict=False)
    )
    return f"Problem set no. {number + 1}\n\n{ask}\n\nSOLUTIONS\n\n{out}"


def math_dialogue(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out a talk between a pupil and a tutor."""
    openings = ["Here is the next one.", "I am stuck on this.", "Could you check this with me?"]
    replies = ["Let us go step by step.", "Gladly.", "Start from what is given."]
    return "\n\n".join(
        f"Pupil: {openings[(number + i) % 3]} {p.ask}\n\nTutor: {replies[(number + i) % 3]}\n"
        f"{p.answer}"
        for i, p in enumerate(pieces)
    )


def math_notes(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out lecture notes with headings."""
    return "\n\n".join(
        f"## {number + 1}.{i} {p.title}\n\n**Example.** {p.ask}\n\n{p.answer}"
        for i, p in enumerate(pieces, 1)
    )


def math_exam(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out an examination paper with indented model answers."""
    out = [f"EXAMINATION PAPER {roman(number + 1)} WITH MODEL ANSWERS"]
    for i, p in enumerate(pieces, 1):
        marks = p.answer.count("\n") + 1
        steps = "\n".join(f"  | {line}" for line in p.answer.split("\n"))
        out.append(f"Question {i} ({p.title}, {marks} marks)\n{p.ask}\nModel answer:\n{steps}")
    return "\n\n".join(out)


def math_prose(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out question and answer with short marks."""
    return "\n\n".join(f"Q: {p.ask}\n\nA: {p.answer}" for p in pieces)


def hash_layout(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out ### Instruction / ### Response blocks."""
    return "\n\n".join(f"### Instruction:\n{p.ask}\n\n### Response:\n{p.answer}" for p in pieces)


def chat_layout(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out a conversation of a user and an assistant."""
    return "\n\n".join(f"User: {p.ask}\n\nAssistant: {p.answer}" for p in pieces)


def short_layout(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out Q and A pairs with their numbers."""
    return "\n\n".join(f"Q{i}. {p.ask}\nA{i}. {p.answer}" for i, p in enumerate(pieces, 1))


def sheet_layout(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out a task sheet: all tasks, then all results."""
    asks = "\n\n".join(
        f"TASK {number + 1}.{i} ({p.title})\n{p.ask}" for i, p in enumerate(pieces, 1)
    )
    results = "\n\n".join(f"RESULT {number + 1}.{i}\n{p.answer}" for i, p in enumerate(pieces, 1))
    return f"{asks}\n\n{'-' * 24}\n\n{results}"


def tag_layout(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out requests and replies in tags."""
    return "\n".join(
        f'<request id="{number + 1}-{i}">\n{p.ask}\n</request>\n<reply>\n{p.answer}\n</reply>'
        for i, p in enumerate(pieces, 1)
    )


def heading_layout(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out Markdown sections with an output part."""
    return "\n\n".join(
        f"## {p.title}\n\n**Request.** {p.ask}\n\n**Output**\n\n{p.answer}" for p in pieces
    )


def rule_layout(number: int, pieces: Sequence[Piece]) -> str:
    """Lay out instruction and output fields between rules."""
    return "\n---\n".join(f"instruction: {p.ask}\noutput:\n{p.answer}" for p in pieces)


MATH_LAYOUTS: tuple[Layout, ...] = (
    math_worksheet,
    math_solutions_last,
    math_dialogue,
    math_notes,
    math_exam,
    math_prose,
)
INSTRUCTION_LAYOUTS: tuple[Layout, ...] = (
    hash_layout,
    chat_layout,
    short_layout,
    sheet_layout,
    tag_layout,
    heading_layout,
    rule_layout,
)


# ----------------------------------------------------------------------------------- documents


def compose(name: str, kinds: Sequence[Kind], layouts: Sequence[Layout]) -> list[str]:
    """Make the documents of a domain: different kinds in turn until each is long enough."""
    rng = Random(f"{SEED}:{name}")
    used: Counter[Kind] = Counter()
    queue: list[Kind] = []
    documents: list[str] = []
    for number in range(DOCUMENTS):
        layout = layouts[number % len(layouts)]
        pieces: list[Piece] = []
        here: set[Kind] = set()
        while True:
            index = next((i for i, kind in enumerate(queue) if kind not in here), None)
            if index is None:
                queue += rng.sample(kinds, len(kinds))
                continue
            kind = queue.pop(index)
            here.add(kind)
            pieces.append(kind(rng, used[kind]))
            used[kind] += 1
            text = layout(number, pieces)
            if len(text.split()) >= MIN_WORDS:
                documents.append(text)
                break
    return documents


def jsonl(documents: Sequence[str]) -> bytes:
    """Encode documents as JSON lines."""
    return "".join(json.dumps({"text": d}, ensure_ascii=False) + "\n" for d in documents).encode(
        "utf-8"
    )


CODE_MODULES = (
    "json.decoder", "heapq", "textwrap", "bisect", "argparse", "calendar", "configparser",
    "contextlib", "copy", "csv", "dataclasses", "difflib", "fractions", "functools", "graphlib",
    "gzip", "html.parser", "http.cookies", "inspect", "ipaddress", "mailbox", "numbers", "pickle",
    "plistlib", "pprint", "queue", "random", "selectors", "shlex", "shutil", "statistics",
    "tarfile", "tempfile", "threading", "tokenize", "traceback", "unittest.case", "urllib.parse",
    "uuid", "weakref", "xml.dom.minidom", "cmd", "sched", "asyncio.queues", "email.header",
    "timeit", "socketserver", "colorsys",
)  # fmt: skip
SOURCES = {
    "math": "Exercises with worked solutions, written by calibration/generate.py, which computes "
    "every number.",
    "commonsense": "Everyday situations and reasoning, written for this project.",
    "science": "Explanations of natural science, written for this project.",
    "instruction": "Instructions and responses that follow them, written by "
    "calibration/generate.py, which computes every response.",
    "knowledge": "General knowledge in many forms, written for this project.",
}
ORDER = ("math", "code", "commonsense", "science", "instruction", "knowledge")


def describe(name: str, data: bytes) -> dict[str, object]:
    """Return the entry of a JSON-lines domain in ``domains.json``."""
    texts = [json.loads(line)["text"] for line in data.splitlines() if line]
    return {
        "name": name,
        "kind": "jsonl",
        "file": f"{name}.jsonl",
        "source": SOURCES[name],
        "licence": "Apache-2.0",
        "sha256": hashlib.sha256(data).hexdigest(),
        "documents": len(texts),
        "words": sum(len(t.split()) for t in texts),
    }


def domains(generated: dict[str, bytes], folder: Path) -> bytes:
    """Make ``domains.json`` from the generated files and the hand-written ones in ``folder``."""
    entries: list[dict[str, object]] = []
    for name in ORDER:
        if name == "code":
            entries.append(
                {
                    "name": "code",
                    "kind": "stdlib",
                    "source": "standard library of the running Python interpreter, read in place, "
                    "not copied",
                    "licence": "PSF-2.0",
                    "modules": list(CODE_MODULES),
                }
            )
            continue
        file = f"{name}.jsonl"
        data = generated[file] if file in generated else (folder / file).read_bytes()
        entries.append(describe(name, data))
    body = {"schema": DOMAINS_SCHEMA, "domains": entries}
    return (json.dumps(body, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def outputs(folder: Path = HERE) -> dict[str, bytes]:
    """Return the content of every file that this program writes, by file name."""
    files = {
        MATH_FILE: jsonl(compose("math", MATH_KINDS, MATH_LAYOUTS)),
        INSTRUCTION_FILE: jsonl(compose("instruction", INSTRUCTION_KINDS, INSTRUCTION_LAYOUTS)),
    }
    files[DOMAINS_FILE] = domains(files, folder)
    return files


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files, or with ``--check`` compare them with what is on disk."""
    parser = argparse.ArgumentParser(description="Write the computed calibration text.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    options = parser.parse_args(argv)
    try:
        files = outputs()
    except FileNotFoundError as missing:
        parser.exit(1, f"missing hand-written file: {Path(missing.filename).name}\n")
    stale = []
    for name, data in files.items():
        path = HERE / name
        if options.check:
            if not path.is_file() or path.read_bytes() != data:
                stale.append(name)
        else:
            path.write_bytes(data)
            print(f"wrote {name}: {len(data)} bytes")
    if stale:
        print(f"out of date: {join_and(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
