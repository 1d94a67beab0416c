"""Invented people, places, dates and sentences that the instructions are about."""

from __future__ import annotations

import datetime as dt
from random import Random

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


def staff(rng: Random, n: int) -> list[dict[str, str | int]]:
    """Invent ``n`` people with a town, a job and a year."""
    names, towns, jobs = rng.sample(PEOPLE, n), rng.sample(TOWNS, n), rng.sample(JOBS, n)
    return [
        {"name": a, "town": b, "job": c, "since": rng.randint(1994, 2024)}
        for a, b, c in zip(names, towns, jobs, strict=True)
    ]
