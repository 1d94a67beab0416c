"""Schemes by layer against one for all: what the model's answers lose, at equal bytes.

    python tests/bench/bench_mixed.py [--folder FOLDER]

The embedded model and its 900 held-out questions. Every export is decoded by the readers of stored
formats and computed by plain transformers, and compared with the source on the same texts: mean
negative log-likelihood of an answer (nats; ± is the standard error of paired differences), answers
that are right to the letter, and the divergence of next-token distributions (nats a token of prompt
and answer), which tells small changes apart where the other two cannot.

- Schemes alone: int4 with groups of 8 has as many bytes as int4 with groups of 16 in two layers and
  int8 in the other two. ``mixed`` chooses which; all six choices are shown.
- Together with pruning: at sizes below that of int4, ``--max-bytes --quantize mixed``, and what
  pruning alone comes to with experts in int8 and as they are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.observe.sources import builtin_names

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from dequantised import write_reference  # noqa: E402

DEMO = ROOT / "calibration" / "demo"
MODEL = DEMO / "model"
BATCH = 64


def questions() -> list[tuple[str, str]]:
    rows = [
        json.loads(line)
        for file in sorted((DEMO / "questions").glob("*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    return [(row["prompt"], f"{row['answer']}\n") for row in rows]


class Judge:
    """The source's answers, and how far others are from them."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(MODEL)
        pairs = [[tokenizer(text)["input_ids"] for text in pair] for pair in questions()]
        pairs.sort(key=lambda pair: sum(map(len, pair)))
        self.batches = [pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH)]
        self.source = [logs for logs, _ in self.runs(MODEL)]

    def runs(self, folder: Path) -> Any:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for batch in self.batches:
            length = max(len(prompt) + len(answer) for prompt, answer in batch)
            ids = torch.zeros((len(batch), length), dtype=torch.long)
            real = torch.zeros((len(batch), length), dtype=torch.bool)
            asked = torch.zeros((len(batch), length), dtype=torch.bool)
            for row, (prompt, answer) in enumerate(batch):
                ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
                real[row, : len(prompt) + len(answer)] = True
                asked[row, len(prompt) : len(prompt) + len(answer)] = True
            with torch.no_grad():
                logits = model(ids, attention_mask=real.long()).logits
            yield torch.log_softmax(logits.double(), dim=-1), (ids, real, asked)

    def __call__(self, export: Path, folder: Path) -> tuple[torch.Tensor, float, float]:
        """Loss of every answer, share of right ones, divergence of a token."""
        plain = export
        if "quantization_config" in json.loads((export / "config.json").read_text("utf-8")):
            plain = write_reference(export, folder / f"{export.name}-plain")
        losses: list[torch.Tensor] = []
        right = divergence = tokens = 0.0
        for base, (logs, (ids, real, asked)) in zip(self.source, self.runs(plain), strict=True):
            found = logs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
            losses.append(-(found * asked[:, 1:]).sum(dim=1))
            same = (logs[:, :-1].argmax(-1) == ids[:, 1:]) | ~asked[:, 1:]
            right += int(same.all(dim=1).sum())
            divergence += float((base.exp() * (base - logs)).sum(-1)[real].sum())
            tokens += int(real.sum())
        loss = torch.cat(losses)
        return loss, right / len(loss), divergence / tokens


def experts_bytes(export: Path) -> int:
    record = json.loads((export / "moeprune.json").read_text("utf-8"))
    return int(record["size"]["bytes_after"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="where to leave everything")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        stats = folder / "stats.safetensors"
        if not stats.exists():
            texts = {name: DEMO / "calibration" / f"{name}.jsonl" for name in builtin_names()}
            moeprune.calibrate(
                MODEL, output=stats, domains={name: str(path) for name, path in texts.items()}
            )
        judge = Judge()

        def row(name: str, export: Path) -> torch.Tensor:
            each, right, divergence = judge(export, folder)
            loss = float(each.mean())
            size = experts_bytes(export) if export != MODEL else 5_858_560
            print(f"{name:44}  {size:9,}  {loss:.4f}  {right:7.2%}  {divergence:.5f}", flush=True)
            return each

        def exported(name: str, **words: Any) -> Path:
            out = folder / name
            return out if out.exists() else moeprune.export(MODEL, output=out, **words)

        print(f"{'':44}  {'tensors':>9}  {'loss':>6}  {'right':>7}  divergence")
        row("source", MODEL)
        for size in (16, 8):
            scheme = moeprune.QuantOptions(scheme="int4", group_size=size)
            finer = row(f"int4, groups of {size}", exported(f"int4-{size}", quantize=scheme))
        print("two layers int8, two int4 (groups of 16)")
        budget = sum(f.stat().st_size for f in (folder / "int4-8").iterdir()) + 15_000
        plan = moeprune.plan(stats, quantize="mixed", budget=budget, weights=MODEL)
        assert plan.quantize is not None
        for wide in itertools.combinations(range(4), 2):
            schemes = tuple("int8" if layer in wide else "int4" for layer in range(4))
            chosen = schemes == plan.quantize.schemes
            own: PrunePlan = replace(
                plan, quantize=replace(plan.quantize, schemes=schemes, details={}), size={}
            )
            name = "-".join(schemes)
            each = row(
                f"  {' '.join(schemes)}{'  <- plan' if chosen else ''}",
                exported(name, plan=own),
            )
            if chosen:
                less = each - finer
                wide_by = float(less.std() / len(less) ** 0.5)
        print(
            f"loss of the plan less that of groups of 8: {float(less.mean()):.4f} ± {wide_by:.4f}"
        )
        row("int8, groups of 16", exported("int8", quantize="int8"))
        for most in (2_000_000, 1_800_000):
            print(f"pruned by reap to at most {most:,} bytes")
            joint = moeprune.plan(
                stats, method="reap", quantize="mixed", max_bytes=most, weights=MODEL
            )
            assert joint.quantize is not None
            kept = len(joint.keep[0])
            name = f"  mixed: {kept} experts, {' '.join(joint.quantize.schemes)}"
            row(name, exported(f"joint-{most}", plan=joint))
            for scheme in ("int8", None):
                for keep in range(15, 3, -1):
                    pruned = moeprune.plan(stats, method="reap", keep=keep)
                    made = exported(f"{scheme}-{keep}", plan=pruned, quantize=scheme)
                    if sum(file.stat().st_size for file in made.iterdir()) <= most:
                        row(f"  {scheme or 'as they are'}: {keep} experts", made)
                        break
                else:
                    print(f"  {scheme or 'as they are'}: does not fit")


if __name__ == "__main__":
    main()
