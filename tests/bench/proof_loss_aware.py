"""Do plans of `best` answer more than those of the papers' methods? Six models, one command.

    python tests/bench/proof_loss_aware.py FOLDER [--draws 3] [--models NAME …] [--tables FILE.md]

FOLDER holds the trained models, and keeps all that is measured, so that a run that was stopped goes
on where it was; a model that is not there is trained first (MODELS says how; 12 to 40 minutes each
on one core). Each draw is a sample of the questions that training left for calibration, as rows of
prompt + completion; `calibrate --loss-aware` reads them once, and every plan is made from its file.
A plan is judged by the model under its mask, on held-out questions: 200 of each domain of facts,
where plans lose most, and 100 of each of the others. One forward pass with the right answer says
whether greedy decoding gives it (as in calibration/demo/check.py), and the loss of the answer.
About a minute a model and draw on one idle core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from proof_plans import PAPERS, other_ways, planned, predicted
from proof_tables import tables
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

import moeprune
from moeprune.core.losses import TEMPERATURE
from moeprune.core.stats import CalibrationStats
from moeprune.routing.mask import masked_experts

DEMO = Path(__file__).parents[2] / "calibration" / "demo"
sys.path.insert(0, str(DEMO))
from questions import DOMAINS, Question, split  # noqa: E402

# name -> seed, and the other words of calibration/demo/train.py; all --steps 3000
MODELS: Mapping[str, tuple[int, str]] = {
    "demo": (0, ""),
    "balance-0": (1, "--balance 0 --spread 0"),
    "dispersed": (2, "--balance 0.3 --spread 2"),
    "balance-0.9": (3, "--balance 0.9 --spread 0"),
    "sigmoid": (4, "--family glm4_moe"),
    "six-by-32": (5, "--layers 6 --experts 32 --expert-width 32 --balance 0.1 --spread 0"),
}
RATIOS, ALLOCATIONS = (0.25, 0.5), ("uniform", "global")
FACTS = ("commonsense", "science", "knowledge")
CALIBRATED, SHARE = 100, 0.75  # questions of a draw and domain, at most this share of all
HELD_OUT = {name: 200 if name in FACTS else 100 for name in DOMAINS}
ROWS = 64  # of one forward pass
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"

Array = NDArray[Any]


def trained(name: str, folder: Path) -> Path:
    """The folder of a model, after training it where it is not there."""
    if name == "demo":
        return DEMO / "model"
    if not (folder / "model" / "config.json").exists():
        seed, words = MODELS[name]
        command = [sys.executable, str(DEMO / "train.py"), "-o", str(folder), "--steps", "3000"]
        subprocess.run([*command, "--seed", str(seed), *words.split()], check=True)
    return folder / "model"


class Judged:
    """A model and its held-out questions; what it answers under a plan is kept in a file."""

    def __init__(self, name: str, place: Path) -> None:
        self.path = trained(name, place)
        self.place = place
        self.model: Any = AutoModelForCausalLM.from_pretrained(self.path).eval()
        self.gates = [layer.mlp.gate for layer in self.model.model.layers]
        seed = MODELS[name][0]
        self.splits = {domain: split(domain, seed=seed) for domain in DOMAINS}
        tokenizer = AutoTokenizer.from_pretrained(self.path)
        self.batches = [
            (domain, batch)
            for domain, made in self.splits.items()
            for batch in _batches(made.held_out[: HELD_OUT[domain]], tokenizer)
        ]

    def answers(self, keep_LE: Array) -> dict[str, Any]:
        """Domain -> right (N,) as 0 and 1, and nats per token of its answers, under a plan."""
        key = hashlib.sha256(np.packbits(keep_LE).tobytes()).hexdigest()[:20]
        file = self.place / f"answers-{sum(HELD_OUT.values())}" / f"{key}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(self._answers(keep_LE)))
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    @torch.inference_mode()
    def _answers(self, keep_LE: Array) -> dict[str, Any]:
        right: dict[str, list[int]] = {domain: [] for domain in DOMAINS}
        nats, tokens = dict.fromkeys(DOMAINS, 0.0), dict.fromkeys(DOMAINS, 0)
        removed = [np.flatnonzero(~keep_E).tolist() for keep_E in keep_LE]
        widths = [keep_LE.shape[1]] * len(keep_LE)
        with masked_experts(self.model, routers=self.gates, num_experts=widths, removed=removed):
            for domain, (ids_BT, asked_BT) in self.batches:
                logits = self.model(ids_BT, use_cache=False).logits[:, :-1]
                good_BT = (logits.argmax(-1) == ids_BT[:, 1:]) | ~asked_BT
                right[domain] += good_BT.all(-1).int().tolist()
                loss = functional.cross_entropy(
                    logits[asked_BT], ids_BT[:, 1:][asked_BT], reduction="sum"
                )
                nats[domain] += loss.item()
                tokens[domain] += int(asked_BT.sum())
        return {"right": right, "loss": {name: nats[name] / tokens[name] for name in DOMAINS}}

    def stats(self, draw: int, *, temperature: float = TEMPERATURE) -> CalibrationStats:
        """What `calibrate --loss-aware` measures on a draw."""
        file = self.place / f"draw-{draw}-temperature-{temperature:g}.safetensors"
        if not file.exists():
            sources = {}
            for domain, made in self.splits.items():
                rng = random.Random(f"draw {draw} {domain}")
                count = min(CALIBRATED, int(SHARE * len(made.calibration)))
                rows = [
                    json.dumps({"prompt": asked.prompt, "completion": f"{asked.answer}\n"})
                    for asked in rng.sample(made.calibration, count)
                ]
                sources[domain] = str(self.place / f"rows-{draw}" / f"{domain}.jsonl")
                Path(sources[domain]).parent.mkdir(exist_ok=True)
                Path(sources[domain]).write_text("\n".join(rows) + "\n")
            moeprune.calibrate(
                str(self.path),
                domains=sources,
                output=file,
                loss_aware=True,
                loss_temperature=temperature,
            )
        return CalibrationStats.load(file)


def _batches(questions: tuple[Question, ...], tokenizer: Any) -> Iterator[tuple[Any, Any]]:
    """Ids (B, T), padded behind, and which of ids[:, 1:] are of answers (B, T - 1).

    Without a mask of attention: no token sees what comes behind it, and a router's choice for
    padding changes nothing else.
    """
    ordered = sorted(questions, key=lambda asked: (len(asked.text), asked.prompt))
    for start in range(0, len(ordered), ROWS):
        part = ordered[start : start + ROWS]
        ids = [tokenizer(asked.text)["input_ids"] for asked in part]
        ids_BT = torch.zeros(len(part), max(map(len, ids)), dtype=torch.long)
        asked_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
        for row, (asked, own) in enumerate(zip(part, ids, strict=True)):
            ids_BT[row, : len(own)] = torch.tensor(own)
            asked_BT[row, len(tokenizer(asked.prompt)["input_ids"]) : len(own)] = True
        yield ids_BT, asked_BT[:, 1:]


def main() -> None:
    """Measure what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the models and all that is measured")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--tables", type=Path, help="Markdown file with a place for them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records: list[dict[str, Any]] = []
    for draw in range(args.draws):
        for name in args.models:
            place = args.folder / name
            place.mkdir(parents=True, exist_ok=True)
            file = place / f"measured-{draw}.json"
            if not file.exists():
                file.write_text(json.dumps(list(measured(name, place, draw))))
            records += json.loads(file.read_text())
    text = tables(records, domains=DOMAINS, papers=PAPERS)
    if args.tables:
        before, _, rest = args.tables.read_text().partition(BEGIN)
        args.tables.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    print(text)


def measured(name: str, place: Path, draw: int) -> Iterator[dict[str, Any]]:
    """All plans of a model and a draw, with what it answers under each."""
    judged = Judged(name, place)
    stats = judged.stats(draw)

    def record(method: str, ratio: float, allocation: str, keep_LE: Array) -> dict[str, Any]:
        found = judged.answers(keep_LE)
        share = [float(np.mean(found["right"][domain])) for domain in DOMAINS]
        said = f"{name}, draw {draw}: {ratio} {allocation} {method}: worst {min(share):.3f}"
        print(f"{said}, mean {np.mean(share):.3f}", file=sys.stderr, flush=True)
        about = {"model": name, "draw": draw, "method": method, "ratio": ratio}
        return {**about, "allocation": allocation, "predicted": predicted(stats, keep_LE), **found}

    whole_LE = np.ones((stats.model.num_layers, stats.model.width), dtype=bool)
    yield record("whole", 0, "", whole_LE)
    for ratio in RATIOS:
        for allocation in ALLOCATIONS:
            for method, keep_LE in planned(stats, ratio, allocation):
                yield record(method, ratio, allocation, keep_LE)
        if not draw:
            plain = judged.stats(draw, temperature=1.0)
            for method, keep_LE in other_ways(stats, plain, ratio):
                yield record(method, ratio, "global", keep_LE)


if __name__ == "__main__":
    main()
