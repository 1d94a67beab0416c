"""Exercises: units, speeds, percentages, mixtures and money."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from generators.numbers import decimal, hundredths
from generators.piece import Piece


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
    return Piece.from_lines("Units", ask, lines)


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
    return Piece.from_lines("Motion", ask, lines)


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
    return Piece.from_lines("Percentages", ask, lines)


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
        return Piece.from_lines("Mixtures", ask, lines)
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
    return Piece.from_lines("Pipes", ask, lines)


def compound_interest(rng: Random, turn: int) -> Piece:
    """Follow a balance or a loan from year to year, in whole cents."""
    rate = rng.choice([2, 3, 4, 5, 6])
    cents = 100 * 50 * rng.randint(20, 120)
    start = cents
    lines = []

    def interest_on(amount: int) -> int:
        return (amount * rate + 50) // 100

    if turn % 2 == 0:
        for year in range(1, 6):
            interest = interest_on(cents)
            lines.append(
                f"Year {year}: {hundredths(cents)} earns {hundredths(interest)} and becomes "
                f"{hundredths(cents + interest)}."
            )
            cents += interest
        simple = start + 5 * start * rate // 100
        ask = f"{start // 100} crowns are saved at {rate} per cent, compounded yearly and rounded "
        ask += "to hundredths. What is the balance after five years? Compare with simple interest."
        lines += [
            f"Simple interest would give {start // 100} * (1 + 5 * {rate}/100) = "
            f"{hundredths(simple)}.",
            f"Interest on interest amounts to {hundredths(cents - simple)} crowns.",
        ]
        return Piece.from_lines("Compound interest", ask, lines)
    pay = start // 4 // 100 * 100
    ask = (
        f"A loan of {start // 100} crowns carries {rate} per cent a year. At the end of each year "
        f"{pay // 100} crowns are paid back. Make the schedule."
    )
    year = 0
    paid = 0
    while cents:
        year += 1
        interest = interest_on(cents)
        amount = min(pay, cents + interest)
        after = cents + interest - amount
        lines.append(
            f"Year {year}: debt {hundredths(cents)}, interest {hundredths(interest)}, payment "
            f"{hundredths(amount)}, left {hundredths(after)}."
        )
        cents = after
        paid += amount
    lines.append(
        f"The payments add up to {hundredths(paid)}, so the loan cost {hundredths(paid - start)}."
    )
    return Piece.from_lines("A repayment plan", ask, lines)
