"""Instructions: dates, timetables and logs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from fractions import Fraction
from random import Random

from generators.material import MONTHS, PEOPLE, TOWNS, WEEKDAYS, long_date, random_day
from generators.numbers import decimal, number_words
from generators.piece import Piece, join_and, pick, table


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
    return Piece.from_lines("Dates", ask, lines)


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
    return Piece.from_lines("A timed procedure", ask, lines)


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
    return Piece.from_lines("Time zones", ask, lines)


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
        ask = "Make a table of the tasks with the columns Due, Days left, Who and Task, ordered by "
        ask += f"due date. Today is {long_date(base)}."
        answer = table(
            ["Due", "Days left", "Who", "Task"],
            [(due[i].isoformat(), (due[i] - base).days, names[i], jobs[i]) for i in order],
        )
    return Piece("Minutes", f"{ask}\n\n{prose}", answer)
