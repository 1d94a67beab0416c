"""Exercises: probability and statistics."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from random import Random

from generators.numbers import decimal, ratio
from generators.piece import Piece, join_and, pick


def two_dice(rng: Random, turn: int) -> Piece:
    """Enumerate the throws of two dice."""
    throws = list(itertools.product(range(1, 7), repeat=2))
    if turn % 2 == 0:
        target = rng.choice([4, 5, 6, 8, 9, 10])
        pairs = [p for p in throws if sum(p) == target]
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
        cases = Counter(abs(i - j) for i, j in throws)
        mean = Fraction(sum(k * v for k, v in cases.items()), 36)
        pairs = [(i, j) for i, j in throws if abs(i - j) == d]
        ask = (
            f"Let D be the larger minus the smaller number on two dice. List the cases D = {d} and "
            "find the expected value of D."
        )
        lines = [
            f"D = {d} happens for "
            + ", ".join(map(str, pairs))
            + f", which is {len(pairs)} of 36.",
            "Counting every value: "
            + ", ".join(f"{k} in {cases[k]} cases" for k in range(6))
            + ".",
            "Expected value: ("
            + " + ".join(f"{k} * {cases[k]}" for k in range(6))
            + f") / 36 = {mean}.",
        ]
    return Piece.from_lines("Two dice", ask, lines)


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
        return Piece.from_lines("Drawing without replacement", ask, lines)
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
    return Piece.from_lines("Coin tosses", ask, lines)


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
        f"{often} {join_and(modes)}, seen {top} times{' each' if len(modes) > 1 else ''}.",
        f"Range: {s[-1]} - {s[0]} = {s[-1] - s[0]}.",
        f"The squares add up to {squares}. Mean of squares minus square of mean: {squares}/{n} - "
        f"{mean * mean} = {var}, about {decimal(var, 2)}.",
    ]
    return Piece.from_lines("A small data set", ask, lines)


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
    return Piece.from_lines("A fitted line", ask, lines)
