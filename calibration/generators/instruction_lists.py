"""Instructions: sorting, grouping and editing lists."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from generators.material import GOODS, PEOPLE
from generators.piece import Piece, join_and


def sort_list(rng: Random, turn: int) -> Piece:
    """Sort names by a key that changes with the turn."""
    names = rng.sample(PEOPLE, 7)
    how: list[tuple[str, Callable[[str], tuple[int | str, ...]], bool]] = [
        ("alphabetically by surname", lambda s: (s.split()[1],), False),
        ("by the length of the full name without the space, shortest first; equal lengths go in "
         "alphabetical order", lambda s: (len(s) - 1, s), False),
        ("in reverse alphabetical order of the first name", lambda s: (s,), True),
        ("by the last letter of the surname, and alphabetically where that letter is the same",
         lambda s: (s[-1], s), False),
    ]  # fmt: skip
    text, key, backwards = how[turn % len(how)]
    done = sorted(names, key=key, reverse=backwards)
    ask = f"Sort the following names {text}. Number the result.\n" + "; ".join(names)
    return Piece.from_lines("Sorting", ask, [f"{i}. {n}" for i, n in enumerate(done, 1)])


def acrostic(rng: Random, turn: int) -> Piece:
    """Pick words whose initials spell a given word."""
    bank = {
        "a": "amber", "b": "birch", "c": "candle", "d": "dune", "e": "ember", "f": "fern",
        "g": "granite", "h": "harbour", "i": "ivory", "k": "kettle", "l": "lantern", "m": "meadow",
        "n": "nettle", "o": "orchard", "p": "pebble", "r": "river", "s": "saddle", "t": "thistle",
        "u": "umbrella", "v": "velvet", "w": "willow",
    }  # fmt: skip
    word = ["window", "planet", "bridge", "silver", "market", "garden"][turn % 6]
    offered = sorted({*(bank[c] for c in word), *rng.sample(sorted(bank.values()), 6)})
    rng.shuffle(offered)
    lines = [f"{c.upper()} is for {bank[c]}" for c in word]
    letters = sum(len(bank[c]) for c in word)
    ask = f"From this list choose words whose first letters spell {word.upper()}, in order, and "
    ask += "write one line per letter. Then state how many letters the chosen words have together "
    ask += f"and which offered words were left over.\nWords: {', '.join(offered)}"
    left = [w for w in offered if w not in {bank[c] for c in word}]
    lines.append(f"Letters in all: {letters}")
    lines.append(f"Left over: {', '.join(left) if left else 'none'}")
    return Piece.from_lines("Initials", ask, lines)


def remove_duplicates(rng: Random, turn: int) -> Piece:
    """Remove duplicates while ignoring case, and report them."""
    words = rng.sample(GOODS, 7)
    doubled = rng.sample(words, 3)
    raw = [*words, *(w.upper() if i % 2 else w.capitalize() for i, w in enumerate(doubled))]
    rng.shuffle(raw)
    seen: list[str] = []
    for w in raw:
        if w.lower() not in seen:
            seen.append(w.lower())
    order = "keep the order of first appearance"
    if turn % 2:
        order = "sort what remains from A to Z"
        seen.sort()
    ask = f"Clean this list: ignore case, drop repeated entries and {order}. Say which entries "
    ask += "were repeated and how many were removed.\n" + ", ".join(raw)
    answer = f"Result ({len(seen)} entries): {', '.join(seen)}\n"
    answer += f"Repeated: {', '.join(sorted(doubled))}\nRemoved: {len(raw) - len(seen)} entries"
    return Piece("Duplicates", ask, answer)


def group_items(rng: Random, turn: int) -> Piece:
    """Group words by category or by a property."""
    groups = {
        "animals": ["heron", "badger", "trout", "lynx", "moth"],
        "tools": ["chisel", "spanner", "plane", "rasp", "clamp"],
        "instruments": ["oboe", "cello", "lute", "bassoon", "zither"],
        "vessels": ["kayak", "barge", "schooner", "ferry", "tug"],
    }
    chosen = {k: rng.sample(v, 3) for k, v in groups.items()}
    flat = [w for v in chosen.values() for w in v]
    rng.shuffle(flat)
    if turn % 2 == 0:
        ask = f"Sort these words into {join_and(chosen)}, each group in alphabetical order: "
        ask += ", ".join(flat)
        answer = "\n".join(f"{k.capitalize()}: {', '.join(sorted(v))}" for k, v in chosen.items())
    else:
        by: dict[int, list[str]] = {}
        for w in sorted(flat):
            by.setdefault(len(w), []).append(w)
        ask = "Group these words by their number of letters, fewest first, and count each group: "
        ask += ", ".join(flat)
        answer = "\n".join(f"{n} letters ({len(by[n])}): {', '.join(by[n])}" for n in sorted(by))
    return Piece("Grouping", ask, answer)


def edit_list(rng: Random, turn: int) -> Piece:
    """Follow a series of editing commands on a list."""
    items = rng.sample(GOODS, 8)
    new1, new2 = items[5], items[6]
    states = [items[:5]]
    gone = rng.choice(items[1:4])
    steps = [f"append {new1}", f"remove {gone}", f"insert {new2} in second place"]
    states.append([*states[-1], new1])
    states.append([item for item in states[-1] if item != gone])
    states.append([states[-1][0], new2, *states[-1][1:]])
    head, *middle, tail = states[-1]
    if turn % 2:
        steps.append("reverse the list")
        states.append([tail, *reversed(middle), head])
    else:
        steps.append("swap the first and the last entry")
        states.append([tail, *middle, head])
    start, *log = (", ".join(state) for state in states)
    ask = f"Start with the list {start}. Carry out these commands one after another and show the "
    ask += "list after each: " + "; ".join(f"({i}) {s}" for i, s in enumerate(steps, 1))
    ask += ". Finally give the number of entries."
    answer = "\n".join(f"After ({i}): {s}" for i, s in enumerate(log, 1))
    return Piece("Editing a list", ask, f"{answer}\nThe list now has {len(states[-1])} entries.")
