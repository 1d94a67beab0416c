"""Instructions: finding, checking and joining facts about people."""

from __future__ import annotations

import json
from random import Random

from generators.material import PEOPLE, long_date, random_day, staff
from generators.piece import Piece, join_and, pick, table


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
            "Make a table; write - where the hours are missing, and name hours without an owner "
            "below it.",
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
