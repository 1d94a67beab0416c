r"""Numbers as models write them.

Read are digits with commas between thousands (``1,234.50``), a sign, a decimal part, an exponent
(``3e5``), a currency sign before and a percent sign after, both dropped, and fractions written with
a bar, which stay fractions (``3/4``, ``\frac{3}{4}``). A dot that ends a sentence is none of the
number, and a minus is a sign only where nothing stands directly before it and a digit follows:
``10-5`` and the list item ``- 5`` end in 5.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

# Groups of thousands are bounded, since a long list of numbers would be tried from each of them.
_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![\w)\].])[-+](?=[$€£¥\d.]))?
    (?:[$€£¥][ ]?(?P<late>-(?=[\d.]))?)?
    (?P<digits>
        (?<!/)\d+/\d+(?![\d/])
      | (?:\d{1,3}(?:,\d{2,3}){0,9},\d{3}(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,3}(?!\w))?
      | (?<![\w.])\.\d+
    )
    """,
    re.VERBOSE,
)
_FRAC = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_HALVES = re.compile("(?<=[0-9])[¼-¾⅐-⅞]")
_MINUS = str.maketrans({"−": "-", "–": "-", "﹣": "-"})
# GSM8K writes "#### 42" at the end. As a heading, "#### 3. Add them up", the signs mean nothing.
_HASHES = "####"
_FINAL = re.compile(r".*####[^\w$€£¥.+-]*(?:boxed\{|text\{)*(?P<rest>.+)")
_UNIT = re.compile(r"\W*(?:[^\W\d]+\W*)?")


def last_number(text: str) -> str | None:
    """The last number in a text, without commas and signs of currency; None: there is none.

    A line that ends in ``####`` and a number, with at most a word for its unit, goes before: the
    last of such lines.
    """
    for line in reversed(text.split("\n")):
        final = _FINAL.match(_plain(line)) if _HASHES in line else None
        found = _NUMBER.match(final["rest"]) if final else None
        if final and found and _UNIT.fullmatch(final["rest"], found.end()):
            return _written(found)
    last = None
    for last in _NUMBER.finditer(_plain(text)):  # noqa: B007 - the last one
        pass
    return None if last is None else _written(last)


def value_of(number: str) -> Fraction | None:
    """What a number is, exactly; None where the text is none."""
    found = _NUMBER.fullmatch(_plain(number.strip()))
    if found is None:
        return None
    try:
        return Fraction(_written(found))
    except (ValueError, ZeroDivisionError):  # ValueError: more digits than Python converts
        return None


def _written(found: re.Match[str]) -> str:
    negative = (found["sign"] or "").startswith("-") or found["late"]
    digits = found["digits"].replace(",", "")
    return f"{'-' if negative else ''}{'0' if digits.startswith('.') else ''}{digits}"


def _plain(text: str) -> str:
    # NFKC: digits and signs of full width, as Chinese and Japanese texts have them.
    text = _HALVES.sub(r" \g<0>", text)  # 1½ is not 11/2
    text = unicodedata.normalize("NFKC", _FRAC.sub(r"\1/\2", text)).translate(_MINUS)
    return text.replace("{,}", ",").replace("\\,", "").replace("\\$", "$").replace("⁄", "/")
