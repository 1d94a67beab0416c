"""Rows with the columns of public data sets. Every text here was made up for these tests."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]

MMLU: Rows = [
    {
        "question": f" Which of these {word} is the {rank} one? \n",
        "subject": subject,
        "choices": [f"the {word} {{a}}", "none\nof them", "both", f" {rank}"],
        "answer": at % 4,
    }
    for at, (word, rank, subject) in enumerate(
        [
            ("stones", "hardest", "made_up_geology"),
            ("rivers", "longest", "made_up_geology"),
            ("kings", "oldest", "made_up_history"),
            ("numbers", "{question}", "made_up_history"),
            ("roads", "widest", "made_up_history"),
            ("hills", "lowest", "made_up_geology"),
        ]
    )
]
CEVAL: Rows = [
    {
        "id": at,
        "question": f"编造的第{at}个问题____。",
        "A": "甲",
        "B": "乙",
        "C": f"丙{at}",
        "D": "丁",
        "answer": "ABCD"[at % 4],
        "explanation": "",
    }
    for at in range(5)
]
GSM8K: Rows = [
    {
        "question": f"A made-up shop sells {at + 2} boxes of 1,000 pins. How many pins are that?",
        "answer": f"{at + 2} boxes of 1,000 are <<{at + 2}*1000={at + 2}000>>{at + 2},000 pins.\n"
        f"#### {at + 2},000",
    }
    for at in range(7)
]
ARC: Rows = [
    {
        "id": f"Made_up_{at}",
        "question": f"What does invented animal {at} eat?",
        "choices": {"text": [f"food {n}" for n in range(len(names))], "label": list(names)},
        "answerKey": names[-1],
    }
    for at, names in enumerate(["ABCD", "1234", "ABC", "ABCDE", "12345"])
]
OPENBOOKQA: Rows = [
    {
        "id": f"0-{at}",
        "question_stem": f"An invented stem, number {at}, ends",
        "choices": {"text": ["here", "there", "nowhere", "late"], "label": list("ABCD")},
        "answerKey": " ABCD"[1 + at % 4],
    }
    for at in range(4)
]
HELLASWAG: Rows = [
    {
        "ind": at,
        "activity_label": label,
        "ctx_a": a,
        "ctx_b": b,
        "ctx": f"{a} {b}",
        "endings": [f"{end} {n}." for n, end in enumerate(ends)],
        "source_id": source,
        "split": "val",
        "split_type": "indomain",
        "label": str(at % 4),
    }
    for at, (label, a, b, ends, source) in enumerate(
        [
            (
                "Inventing tests",
                "Somebody writes a test [step] on paper.",
                "then Anna",
                ["[title] runs it", "eats  it [substeps]", " waits", "[a][b] leaves"],
                "wikihow~1",
            ),
            (
                "How to fold a map",
                "[header] How to fold a map [title] Find a table.    [step] Lay it flat.",
                "",
                ["fold it", "burn it", "wash it", "hide it [title] and go"],
                "wikihow~2",
            ),
            (
                "Sawing",
                "A man saws wood.",
                "he",
                ["stops", "sings", "sits", "sleeps"],
                "activitynet~v_x",
            ),
        ]
    )
]
PIQA: Rows = [
    {"goal": f"To open made-up jar {at}", "sol1": "turn the lid", "sol2": "ask it", "label": at % 2}
    for at in range(3)
]
WINOGRANDE: Rows = [
    {
        "sentence": "Ann gave Bea the made-up book because _ had read it twice.",
        "option1": "Ann",
        "option2": "Bea",
        "answer": "1",
    },
    {
        "sentence": "The lid did not fit the pot, since the _ was too wide .",
        "option1": "pot",
        "option2": "lid",
        "answer": "2",
    },
    {
        "sentence": "_ was made up, and the other was not.",
        "option1": "This one",
        "option2": "That one",
        "answer": "2",
    },
]
GPQA: Rows = [
    {
        "Question": f" An invented question {at} about invented particles? ",
        "Correct Answer": f"{at} units\n",
        "Incorrect Answer 1": "1.5 units",
        "Incorrect Answer 2": "no  units",
        "Incorrect Answer 3": "all units",
        "Record ID": f"rec{at}",
        "Subdomain": "Invented physics",
        "High-level domain": "Physics",
        "Explanation": "Because.",
    }
    for at in range(12)
]
PUBLISHED: dict[str, Rows] = {
    "arc": ARC,
    "ceval": CEVAL,
    "gpqa": GPQA,
    "gsm8k": GSM8K,
    "hellaswag": HELLASWAG,
    "mmlu": MMLU,
    "openbookqa": OPENBOOKQA,
    "piqa": PIQA,
    "winogrande": WINOGRANDE,
}
