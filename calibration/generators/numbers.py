"""How numbers are factored, rounded and written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction


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
        front = "" if size == 1 and power else str(size)
        if front and power and isinstance(size, Fraction) and size.denominator != 1:
            front = f"({front})"
        body = front + ("" if power == 0 else name if power == 1 else f"{name}^{power}")
        if not out:
            out = f"-{body}" if c < 0 else body
        else:
            out += f" - {body}" if c < 0 else f" + {body}"
    return out or "0"


def root_factor(root: int) -> str:
    """Return the linear factor with a given zero, such as "(x - 3)"."""
    return f"({poly([1, -root])})"


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


def is_prime(n: int) -> bool:
    """Say whether ``n`` is prime."""
    return n > 1 and len(factor(n)) == 1


def decimal(value: Fraction, places: int) -> str:
    """Round a fraction half up and write it with a fixed number of decimals."""
    scaled = math.floor(abs(value) * 10**places + Fraction(1, 2))
    whole, rest = divmod(scaled, 10**places)
    sign = "-" if value < 0 and scaled else ""
    return f"{sign}{whole}" + (f".{rest:0{places}d}" if places else "")


def hundredths(amount: int) -> str:
    """Write a whole number of cents as an amount of money with two decimals."""
    return f"{amount / 100:.2f}"


def ratio(n: int, d: int) -> str:
    """Write a quotient and, where it can be reduced, its lowest terms."""
    return f"{n}/{d}" + ("" if str(Fraction(n, d)) == f"{n}/{d}" else f" = {Fraction(n, d)}")


SMALL_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


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
