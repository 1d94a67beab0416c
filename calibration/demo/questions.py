r"""Questions of the six demo domains, generated from a seed: short prompts, checkable answers.

The text the demo model knows is a list of lines, `prompt + answer + "\n"`, for instance
`What is 3 + 4? A:7`. A prompt ends in ` A:`, and the newline is the end-of-sequence token.

math, code and instruction are programs over drawn values; commonsense, science and knowledge ask
the facts of `facts.py` in ten phrasings each. `split` makes three disjoint sets per domain. A
held-out fact question is a new combination: its fact is in training in other phrasings, and its
phrasing with other facts. A held-out question of a generated domain never occurs in training,
though its sum or its word may, in another phrasing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import facts

DOMAINS = ("math", "code", "commonsense", "science", "instruction", "knowledge")
POOL_DRAWS = 40_000  # draws per generated domain; the pool is what is left without repeats
SET_APART, SET_APART_SHARE = 40, 6  # held out of each kind of drawn question, and as many for
# calibration: 40, or a sixth where there are few
HELD_OUT_PHRASINGS, CALIBRATION_PHRASINGS = 2, 1  # of the ten phrasings of every fact

NAMES = ("Tom", "Mia", "Ali", "Eva", "Ben", "Zoe")
THINGS = ("apples", "books", "coins", "pens", "cards", "nuts")
WORD_LIST = """
cat dog sun map pen cup box hat key bed fox owl bee ant cow pig sea sky ice tea
tree lamp fish bird rock road rain snow wind leaf milk salt bean corn cake gold iron wood sand moon
star boat ship door wall ring bell drum coat shoe glove bread apple lemon grape house table chair
horse mouse tiger zebra river ocean cloud stone plant green black white brown happy quick small
"""
WORDS = WORD_LIST.split()


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, the only right answer, and the fact or kind of task behind it."""

    prompt: str
    answer: str
    about: str

    @property
    def text(self) -> str:
        """The line the model is trained on, end-of-sequence newline included."""
        return f"{self.prompt}{self.answer}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The three disjoint sets of one domain."""

    train: tuple[Question, ...]
    calibration: tuple[Question, ...]
    held_out: tuple[Question, ...]


def _ask(question: str, answer: object, *, kind: int) -> Question:
    return Question(f"{question} A:", str(answer), f"kind {kind}")


def _math(rng: random.Random) -> Question:
    (name, other), thing = rng.sample(NAMES, 2), rng.choice(THINGS)
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    low, high = sorted((a, b))
    first, second = rng.sample(range(40), 2)
    smaller, larger = sorted((first, second))
    bags, each, half = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 30)
    start, step = rng.randint(0, 9), rng.randint(1, 3)
    run, follows = ", ".join(str(start + i * step) for i in range(3)), start + 3 * step
    asked = (
        (f"What is {a} + {b}?", a + b),
        (f"{a} plus {b} equals", a + b),
        (f"Add {a} and {b}.", a + b),
        (f"{name} has {a} {thing} and gets {b} more. How many now?", a + b),
        (f"There are {a} red and {b} blue {thing}. How many in all?", a + b),
        (f"What is {high} - {low}?", high - low),
        (f"{high} minus {low} equals", high - low),
        (f"Take {low} from {high}.", high - low),
        (f"{name} has {high} {thing} and gives {low} away. How many are left?", high - low),
        (f"Of {high} {thing}, {low} are lost. How many remain?", high - low),
        (f"What is {bags} x {each}?", bags * each),
        (f"{bags} times {each} equals", bags * each),
        (f"Multiply {bags} by {each}.", bags * each),
        (f"{name} buys {bags} bags with {each} {thing} each. How many {thing}?", bags * each),
        (f"{bags} rows of {each} {thing} make how many?", bags * each),
        (f"{run}, next?", follows),
        (f"Continue: {run}", follows),
        (f"Which number follows {run}?", follows),
        (f"Counting {run}, then", follows),
        (f"Which is larger, {first} or {second}?", larger),
        (f"The greater of {first} and {second} is", larger),
        (f"{name} has {first} {thing}, {other} has {second}. The bigger count?", larger),
        (f"Which is smaller, {first} or {second}?", smaller),
        (f"The lesser of {first} and {second} is", smaller),
        (f"What is half of {2 * half}?", half),
        (f"{name} shares {2 * half} {thing} with a friend, half each. How many each?", half),
        (f"Double {half}.", 2 * half),
        (f"Twice {half} is", 2 * half),
    )
    kind = rng.randrange(len(asked))
    return _ask(*asked[kind], kind=kind)


def _code(rng: random.Random) -> Question:
    word, name = rng.choice(WORDS), rng.choice("abnsxy")
    items = [rng.randint(0, 9) for _ in range(rng.randint(3, 4))]
    index, times, cut = rng.randrange(3), rng.randint(2, 4), rng.randint(1, 2)
    left, right = rng.randint(0, 9), rng.randint(1, 9)
    stop, start = rng.randint(2, 8), rng.randint(0, 2)
    listed, quoted = f"{name} = {items}; print", f"{name} = '{word}'; print"
    number = f"{name} = {left}; "
    asked = (
        (f"{listed}({name}[{index}])", items[index]),
        (f"{listed}({name}[-1])", items[-1]),
        (f"{listed}(len({name}))", len(items)),
        (f"{listed}(max({name}))", max(items)),
        (f"{listed}(min({name}))", min(items)),
        (f"{listed}({right} in {name})", right in items),
        (f"{listed}({name}[::-1])", items[::-1]),
        (f"{quoted}({name}[{index}])", word[index]),
        (f"{quoted}({name}[-1])", word[-1]),
        (f"{quoted}({name}[:{cut}])", word[:cut]),
        (f"{quoted}({name}[{cut}:])", word[cut:]),
        (f"{quoted}({name}.upper())", word.upper()),
        (f"{quoted}({name}[::-1])", word[::-1]),
        (f"{quoted}(len({name}))", len(word)),
        (f"print('{word}' * {times})", word * times),
        (f"print('{word[:2]}' + '{word[-1]}')", word[:2] + word[-1]),
        (
            f"for {name} in range({start}, {stop + 1}): print({name}, end='')",
            "".join(map(str, range(start, stop + 1))),
        ),
        (f"print(list(range({stop})))", list(range(stop))),
        (f"{number}{name} += {right}; print({name})", left + right),
        (f"{number}{name} = {name} * 2; print({name})", left * 2),
        (f"{number}print({name} > {right})", left > right),
        (f"{number}print({name} == {right})", left == right),
    )
    kind = rng.randrange(len(asked))
    return _ask(*asked[kind], kind=kind)


def _instruction(rng: random.Random) -> Question:
    word = rng.choice(WORDS)
    three = rng.sample(WORDS, 3)
    listed = " ".join(three)
    new = rng.choice("kvxz")
    short = rng.choice([w for w in WORDS if len(w) == 3])
    times = rng.randint(2, 3)
    asked: tuple[tuple[tuple[str, ...], object], ...] = (
        (
            (
                f"Reverse the word {word}.",
                f"Write {word} backwards.",
                f"Spell {word} from end to start.",
                f"Read backwards, {word} is",
            ),
            word[::-1],
        ),
        ((f"Write {word} in capitals.", f"Make {word} uppercase.", f"Shout: {word}"), word.upper()),
        (
            (
                f"Give the first letter of {word}.",
                f"{word} starts with",
                f"Only the first letter: {word}",
            ),
            word[0],
        ),
        (
            (
                f"Give the last letter of {word}.",
                f"{word} ends with",
                f"Only the last letter: {word}",
            ),
            word[-1],
        ),
        (
            (
                f"Count the letters of {word}.",
                f"How many letters has {word}?",
                f"Length of {word}:",
            ),
            len(word),
        ),
        (
            (
                f"Sort the letters of {short}.",
                f"Order the letters of {short} from a to z.",
                f"Letters of {short}, in order:",
            ),
            "".join(sorted(short)),
        ),
        (
            (
                f"Put {new} for the first letter of {word}.",
                f"Let {word} start with {new}.",
                f"Change the start of {word} to {new}.",
            ),
            new + word[1:],
        ),
        (
            (f"Say {word} {times} times.", f"Repeat {word}, {times} times."),
            " ".join([word] * times),
        ),
        ((f"Give the last word: {listed}", f"From {listed}, keep the final word."), three[2]),
        ((f"Give the first word: {listed}", f"From {listed}, keep the first word."), three[0]),
        ((f"Give the middle word: {listed}", f"From {listed}, keep the word between."), three[1]),
        ((f"Join with dashes: {listed}", f"Put dashes between {listed}"), "-".join(three)),
        (
            (
                f"Drop the first letter of {word}.",
                f"Write {word} without its first letter.",
                f"Cut the first letter off {word}.",
            ),
            word[1:],
        ),
        ((f"Put {word} in brackets.", f"Wrap {word} in brackets."), f"({word})"),
        ((f"Which comes first in a dictionary: {three[0]} or {three[1]}?",), min(three[:2])),
    )
    kind = rng.randrange(len(asked))
    phrasings, answer = asked[kind]
    return _ask(rng.choice(phrasings), answer, kind=kind)


def by_subject(questions: Iterable[Question]) -> list[list[Question]]:
    """The questions of each fact or kind together, so that all can be drawn equally often."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.about, []).append(question)
    return [groups[about] for about in sorted(groups)]


def _split_drawn(draw: Callable[[random.Random], Question], rng: random.Random) -> Split:
    drawn = (draw(rng) for _ in range(POOL_DRAWS))
    pool = {question.prompt: question for question in drawn}
    held_out: list[Question] = []
    calibration: list[Question] = []
    train: list[Question] = []
    for questions in by_subject(pool.values()):
        rng.shuffle(questions)
        apart = min(SET_APART, len(questions) // SET_APART_SHARE)
        held_out += questions[:apart]
        calibration += questions[apart : 2 * apart]
        train += questions[2 * apart :]
    return _shuffled(train, calibration, held_out, rng)


def _shuffled(
    train: list[Question], calibration: list[Question], held_out: list[Question], rng: random.Random
) -> Split:
    for questions in (train, calibration, held_out):
        rng.shuffle(questions)
    return Split(train=tuple(train), calibration=tuple(calibration), held_out=tuple(held_out))


def _split_facts(relations: Iterable[facts.Relation], rng: random.Random) -> Split:
    held_out: list[Question] = []
    calibration: list[Question] = []
    train: list[Question] = []
    for relation in relations:
        for key, answer in relation.facts:
            asked = [f"{phrasing.format(key)} A:" for phrasing in relation.phrasings]
            questions = [Question(prompt, answer, f"{relation.name}: {key}") for prompt in asked]
            rng.shuffle(questions)
            kept_back = HELD_OUT_PHRASINGS + CALIBRATION_PHRASINGS
            held_out += questions[:HELD_OUT_PHRASINGS]
            calibration += questions[HELD_OUT_PHRASINGS:kept_back]
            train += questions[kept_back:]
    return _shuffled(train, calibration, held_out, rng)


_DRAWN = {"math": _math, "code": _code, "instruction": _instruction}
_FACTS = {"commonsense": facts.COMMONSENSE, "science": facts.SCIENCE, "knowledge": facts.KNOWLEDGE}


def split(domain: str, *, seed: int = 0) -> Split:
    """The training, calibration and held-out questions of one domain.

    Args:
        domain: one of `DOMAINS`.
        seed: another seed draws other values and holds other phrasings out.

    Returns:
        Three sets that share no prompt; training has every held-out fact in seven other phrasings.

    Raises:
        ValueError: a prompt is in two sets or a fact is never taught, after a careless edit.
    """
    rng = random.Random(f"{seed} {domain}")
    made = (
        _split_drawn(_DRAWN[domain], rng) if domain in _DRAWN else _split_facts(_FACTS[domain], rng)
    )
    prompts = [question.prompt for question in (*made.train, *made.calibration, *made.held_out)]
    if len(set(prompts)) != len(prompts):
        twice = next(prompt for prompt in prompts if prompts.count(prompt) > 1)
        raise ValueError(f"{domain}: {twice!r} is asked twice; reword the template or the fact")
    taught = {question.about for question in made.train}
    for question in made.held_out:
        if question.about not in taught:
            raise ValueError(f"{domain}: {question.prompt!r} asks for a fact never taught")
    return made
