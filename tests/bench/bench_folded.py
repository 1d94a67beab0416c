"""What a folded gain costs: exact k₁ and k₂, the folded checkpoint, and k₂ = k₁, side by side.

    python tests/bench/bench_folded.py [--k1 2 3] [--k2 3 4 5 6 8] [--runs FOLDER]

The embedded model, its calibration text, and its 900 held-out questions: asked (exact matches), and
as text, ten a document, of which the perplexity of a character is taken. ``moeprune compare`` pairs
the answers of any two folders of FOLDER.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import moeprune

DEMO = Path(__file__).parent.parent.parent / "calibration" / "demo"
TASK = r"""schema = "moeprune.task/1"
questions = "questions.jsonl"
kind = "generate"
max_new_tokens = 24
extract = 'regex:\A(\S(?:.*\S)?)\Z'
"""


def write_questions(folder: Path) -> None:
    rows: list[dict[str, Any]] = []
    texts: list[dict[str, str]] = []
    for file in sorted((DEMO / "questions").glob("*.jsonl")):
        own = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        rows += [{**row, "domain": file.stem} for row in own]
        for at in range(0, len(own), 10):
            lines = [f"{row['prompt']}{row['answer']}\n" for row in own[at : at + 10]]
            texts.append({"text": "".join(lines)})
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, texts)), "utf-8")
    (folder / "questions.toml").write_text(TASK, "utf-8")


def judged(model: Path, name: str, folder: Path, runs: Path, **policy: int) -> tuple[float, float]:
    """Perplexity of a character, and share of right answers."""
    out = runs / name
    if not out.exists():
        moeprune.eval(
            model,
            output=out,
            name=name,
            tasks=[str(folder / "questions.toml")],
            held_out={"questions": str(folder / "text.jsonl")},
            chunk=256,
            dtype="float32",
            **policy,  # type: ignore[arg-type]
        )
    tasks = json.loads((out / "run.json").read_text("utf-8"))["tasks"]
    found = [task["summary"] for task in tasks.values()]
    perplexity = next(one["perplexity"]["per_token"] for one in found if one["perplexity"])
    return perplexity, next(one["accuracy"] for one in found if one["accuracy"] is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--k1", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--k2", type=int, nargs="+", default=[3, 4, 5, 6, 8])
    parser.add_argument("--runs", type=Path, help="an existing folder; runs in it are not repeated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        runs = options.runs or folder
        write_questions(folder)
        stats = folder / "stats.safetensors"
        text = sorted((DEMO / "calibration").glob("*.jsonl"))
        domains = {file.stem: str(file) for file in text}
        moeprune.calibrate(DEMO / "model", output=stats, domains=domains, dtype="float32")
        native = judged(DEMO / "model", "native", folder, runs)
        print("| k1 | k2 | exact | folded | exact | folded |")
        print("|---|---|---|---|---|---|")
        print(f"| native | | {native[0]:.3f} | | {native[1]:.1%} | |", flush=True)
        for k1 in options.k1:
            for k2 in [k1, *(k2 for k2 in options.k2 if k2 > k1)]:
                exact = judged(DEMO / "model", f"exact-{k1}-{k2}", folder, runs, k1=k1, k2=k2)
                fold = exact
                if k2 != k1:
                    out = folder / f"folded-{k1}-{k2}"
                    moeprune.export(DEMO / "model", output=out, k1=k1, k2=k2, fold_gain=stats)
                    fold = judged(out, out.name, folder, runs)
                cells = (f"{exact[0]:.3f}", f"{fold[0]:.3f}", f"{exact[1]:.1%}", f"{fold[1]:.1%}")
                print(f"| {k1} | {k2} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
