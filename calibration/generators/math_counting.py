"""Exercises: counting selections, sums and overlapping sets."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

from generators.numbers import ratio
from generators.piece import Piece, plural


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
        return Piece.from_lines("Committees", ask, lines)
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
    return Piece.from_lines("Rearranged letters", ask, lines)


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
        return Piece.from_lines("Partitions", ask, lines)
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
    return Piece.from_lines("Paths on a grid", ask, lines)


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
        return Piece.from_lines("Inclusion and exclusion", ask, lines)
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
    return Piece.from_lines("Two overlapping groups", ask, lines)
