"""Instructions: tables, prices, quantities and counts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

from generators.material import GOODS, SENTENCES, TOWNS
from generators.numbers import decimal, hundredths, number_words, ratio, roman
from generators.piece import Piece, join_and, pick, table


def to_table(rng: Random, turn: int) -> Piece:
    """Format comma-separated lines as a table with a total."""
    goods = rng.sample(GOODS, 5)
    rows = [(g, rng.randint(2, 30), rng.randint(80, 900)) for g in goods]
    raw = "\n".join(f"{g},{q},{hundredths(p)}" for g, q, p in rows)
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
    body: list[Sequence[object]] = [(g, q, hundredths(p), hundredths(q * p)) for g, q, p in rows]
    body.append(("Total", sum(q for _, q, _ in rows), "", hundredths(total)))
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
    return Piece.from_lines("Scaling a recipe", ask, lines)


def spell_numbers(rng: Random, turn: int) -> Piece:
    """Spell out numbers or write them in Roman numerals."""
    ns = [rng.randint(21, 99), rng.randint(101, 999), rng.randint(1001, 3999), rng.randint(4, 20)]
    rng.shuffle(ns)
    if turn % 2 == 0:
        ask = f"Spell these numbers in English words, in rising order: {', '.join(map(str, ns))}."
        answer = "\n".join(f"{n}: {number_words(n)}" for n in sorted(ns))
    else:
        ask = f"Write {join_and(ns)} in Roman numerals and in words, then add "
        ask += "them up and give the sum in both notations if it is below 4000."
        answer = "\n".join(f"{n} = {roman(n)} ({number_words(n)})" for n in ns)
        t = sum(ns)
        answer += f"\nSum: {t}" + (
            f" = {roman(t)} ({number_words(t)})" if t < 4000 else ", which is not below 4000"
        )
    return Piece("Numbers in words", ask, answer)


def compare_products(rng: Random, turn: int) -> Piece:
    """Compare offers by unit price and by weight."""
    what = rng.choice(GOODS)
    shops = rng.sample(TOWNS, 3)
    offers = [(s, 50 * rng.randint(4, 40), rng.randint(150, 1900)) for s in shops]
    unit = [Fraction(p * 1000, g) / 100 for _, g, p in offers]
    ask = f"Three shops sell {what}: " + "; ".join(
        f"the {s} shop asks {hundredths(p)} for {g} g" for s, g, p in offers
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
        f"{offers[i][0]}: {hundredths(offers[i][2])} * 1000 / {offers[i][1]} = "
        f"{decimal(unit[i], 2)} per kg" + ("" if (unit[i] * 100).denominator == 1 else ", rounded")
        for i in order
    ]
    lines.append(f"Cheapest: {offers[order[0]][0]}.")
    if turn % 2:
        diff = unit[order[2]] - unit[order[0]]
        lines.append(f"Difference between last and first: {decimal(diff, 2)} per kg (rounded).")
    return Piece.from_lines("Comparing offers", ask, lines)


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
