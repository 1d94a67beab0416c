"""Instructions: rewriting text and writing to conditions."""

from __future__ import annotations

import itertools
import json
from random import Random

from generators.material import PEOPLE, SENTENCES, TOWNS, WEEKDAYS, long_date, random_day
from generators.piece import Piece, pick, table


def passive_voice(rng: Random, turn: int) -> Piece:
    """Rewrite active sentences in the passive, or the other way round."""
    actions = [
        ("repaired", "the church organ"), ("translated", "the old contract"),
        ("painted", "the garden fence"), ("sold", "the wooden boat"),
        ("photographed", "the lunar eclipse"), ("wrote", "the annual report"),
        ("found", "the missing key"), ("designed", "the new bridge"), ("baked", "the rye bread"),
        ("drew", "the street map"), ("stole", "the brass bell"), ("planted", "the walnut tree"),
    ]  # fmt: skip
    participle = {"wrote": "written", "drew": "drawn", "stole": "stolen"}
    chosen = rng.sample(actions, 5)
    names = rng.sample(PEOPLE, 5)
    active = [f"{n} {v} {o}." for n, (v, o) in zip(names, chosen, strict=True)]
    passive = [
        f"{o[0].upper()}{o[1:]} was {participle.get(v, v)} by {n}."
        for n, (v, o) in zip(names, chosen, strict=True)
    ]
    if turn % 2:
        ask = "Rewrite each sentence in the active voice.\n" + "\n".join(passive)
        return Piece.from_lines("Active voice", ask, active)
    ask = "Rewrite each sentence in the passive voice and keep the agent.\n" + "\n".join(active)
    return Piece.from_lines("Passive voice", ask, passive)


def constrained_note(rng: Random, turn: int) -> Piece:
    """Write a notice that meets numbered constraints, found by search."""
    name = rng.choice(PEOPLE)
    place, day = rng.choice(TOWNS), rng.choice(WEEKDAYS)
    thing = rng.choice(["reading circle", "repair workshop", "choir rehearsal", "chess evening"])
    slots = [
        [f"Join our {thing} in {place}", f"Come to the {thing} in {place} with your friends",
         f"Everyone is warmly welcome at the {thing} in {place}"],
        [f"this {day}", f"on the evening of {day}", f"{day} at seven sharp"],
        [f"{name} will open the doors", f"{name} keeps the key and will open the doors early",
         f"Ask {name} if you need help with the stairs"],
        ["Tea is free", "Tea and cake are free for all who help afterwards",
         "There will be tea, and donations are welcome"],
    ]  # fmt: skip
    options = [f"{s[0]} {s[1]}. {s[2]}. {s[3]}." for s in itertools.product(*slots)]
    text = rng.choice(options)
    words = text.rstrip(".").split()
    count = len(words)
    commas = text.count(",")
    ask = (
        f"Write a notice for a {thing}. Conditions: (1) exactly {count} words; (2) three sentences;"
        f' (3) the first word is "{words[0]}"; (4) name {place}, {day} and {name}; (5) '
        f'{"no commas" if not commas else f"exactly {commas} comma"}; (6) the word "tea" occurs, '
        "in any case. Add a line that proves the length."
    )
    check = pick(
        [
            f"Check: {count} words, 3 sentences, starts with {words[0]}, {commas} commas.",
            f"(Counted by sentence: {' + '.join(str(len(p.split())) for p in text.split('.')[:3])}"
            f" = {count} words.)",
        ],
        turn,
    )
    return Piece("A notice under constraints", ask, f"{text}\n{check}")


def name_styles(rng: Random, turn: int) -> Piece:
    """Rewrite phrases as identifiers."""
    phrases = rng.sample(
        [
            "last seen date", "total price before tax", "is user active", "max retry count",
            "default output folder", "row index in page", "first free seat", "has valid ticket",
            "average queue length", "next departure time", "file size in bytes", "city of birth",
        ],
        5,
    )  # fmt: skip
    rows = []
    for p in phrases:
        w = p.split()
        camel = w[0] + "".join(x.capitalize() for x in w[1:])
        rows.append((p, "_".join(w), camel, "-".join(w), "_".join(w).upper()))
    if turn % 2:
        ask = "Write each phrase in snake_case, camelCase, kebab-case and as an upper-case constant"
        ask += ". Use a table.\n" + "\n".join(phrases)
        head = ["Phrase", "snake", "camel", "kebab", "constant"]
        return Piece("Identifiers", ask, table(head, rows))
    ask = "Turn these phrases into snake_case keys of a YAML mapping whose values are the same "
    ask += "phrases as titles, with every word capitalised.\n" + ", ".join(phrases)
    answer = "\n".join(f"{r[1]}: " + " ".join(x.capitalize() for x in r[0].split()) for r in rows)
    return Piece("Keys and titles", ask, answer)


def config_convert(rng: Random, turn: int) -> Piece:
    """Convert settings between INI, JSON and environment variables."""
    data: dict[str, dict[str, object]] = {
        "server": {
            "host": f"node{rng.randint(2, 40)}.example.net",
            "port": rng.randint(2000, 9000),
        },
        "cache": {"enabled": rng.choice([True, False]), "minutes": rng.randint(5, 90)},
        "mail": {"sender": f"robot{rng.randint(1, 9)}@example.org", "retries": rng.randint(1, 6)},
    }

    def scalar(v: object) -> str:
        return str(v).lower() if isinstance(v, bool) else str(v)

    ini = "\n\n".join(
        f"[{s}]\n" + "\n".join(f"{k} = {scalar(v)}" for k, v in d.items()) for s, d in data.items()
    )
    body = json.dumps(data, indent=2)
    if turn % 3 == 0:
        ask = "Convert this INI file to JSON with proper types."
        return Piece("INI to JSON", f"{ask}\n{ini}", body)
    if turn % 3 == 1:
        ask = "Rewrite this JSON as an INI file, one section per key."
        return Piece("JSON to INI", f"{ask}\n{body}", ini)
    env = "\n".join(
        f"APP_{s.upper()}_{k.upper()}={scalar(v)}" for s, d in data.items() for k, v in d.items()
    )
    ask = "Flatten these settings to environment variables with the prefix APP, upper case, parts "
    return Piece("Settings", f"{ask}joined by underscores.\n{ini}", env)


def cipher(rng: Random, turn: int) -> Piece:
    """Shift letters, or write text backwards."""
    text = rng.choice(SENTENCES)
    if turn % 2 == 0:
        k = rng.randint(2, 12)
        low = "abcdefghijklmnopqrstuvwxyz"
        move = str.maketrans(
            low + low.upper(), low[k:] + low[:k] + low[k:].upper() + low[:k].upper()
        )
        ask = f"Encode the sentence by moving every letter {k} places forward in the alphabet, "
        ask += "wrapping round after z. Leave spaces and punctuation alone. Quote one "
        ask += f"word before and after as an example.\n{text}"
        sample = text.split()[1]
        answer = f'{text.translate(move)}\nExample: "{sample}" became "{sample.translate(move)}".'
        return Piece("A shifted alphabet", ask, answer)
    words = text.rstrip(".").split()
    ask = f"Reverse the order of the words, then give the initials of the result.\n{text}"
    back = [w.strip(",").lower() for w in reversed(words)]
    answer = " ".join(back) + "\nInitials: " + "".join(w[0] for w in back).upper()
    return Piece("Words in reverse", ask, answer)


def rewrite_tone(rng: Random, turn: int) -> Piece:
    """Rewrite a formal message plainly, or a note formally."""
    name, town = rng.choice(PEOPLE), rng.choice(TOWNS)
    first = name.split()[0]
    day, clock = random_day(rng), f"{rng.randint(8, 17):02d}:{rng.choice(['00', '30'])}"
    order = rng.randint(1000, 9999)
    formal = [
        f"We regret to inform you that order {order} will not reach {town} before "
        f"{long_date(day)}. Should this cause inconvenience, kindly contact us. We remain at your "
        "disposal.",
        f"It is requested that you attend an appointment in {town} on {long_date(day)} at {clock}."
        " Your timely confirmation would be appreciated.",
        f"Please be advised that the {town} office will remain closed on {long_date(day)}. Normal "
        f"service shall resume thereafter at {clock}.",
    ]
    plain = [
        f"Hi {first}, sorry, order {order} won't get to {town} before {long_date(day)}. If that's a"
        " problem, just let us know. We're happy to help.",
        f"Hi {first}, can you come to {town} on {long_date(day)} at {clock}? Please let us know "
        "soon.",
        f"Hi {first}, the {town} office is shut on {long_date(day)}. After that we're back to "
        f"normal from {clock}.",
    ]
    i = turn % 3
    a = f"Dear {name}, {formal[i]}"
    if turn % 2 == 0:
        ask = "Rewrite the message in a friendly, plain tone. Keep every fact. Address the reader "
        return Piece("Plain language", f"{ask}by first name.\n\n{a}", plain[i])
    ask = f"Make this note formal, without contractions, addressed to {name}.\n\n{plain[i]}"
    return Piece("Formal language", ask, a)
