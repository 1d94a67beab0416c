"""Exercises: divisibility, primes and remainders."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

from generators.numbers import factor, is_prime, power_form, signed
from generators.piece import Piece, join_and, pick


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
    return Piece.from_lines("Euclid's algorithm", ask, [*steps, *tail])


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
        return Piece.from_lines("Modular powers", ask, lines)
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
    return Piece.from_lines("Last digits", ask, lines)


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
        powers = {p: [p**k for k in range(e + 1)] for p, e in counts}
        sums = [f"for {p}: {' + '.join(map(str, v))} = {sum(v)}" for p, v in powers.items()]
        each = " * ".join(str(sum(v)) for v in powers.values())
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
            f"The squares dividing {n} are therefore {join_and(squares)}.",
            f"With the largest of them, sqrt({n}) = sqrt({big} * {n // big}) = "
            f"{math.isqrt(big)} * sqrt({n // big}).",
        ]
    return Piece.from_lines("Prime factors", ask, lines)


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
    return Piece.from_lines("Simultaneous remainders", ask, lines)
