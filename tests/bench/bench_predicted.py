"""How well statistics foretell what leaving out one expert does to the loss.

    python tests/bench/bench_predicted.py [MODEL_FOLDER …] [--rows 150] [--temperatures 1 3] …

For each folder (default: calibration/demo) with ``model``, ``calibration`` and ``questions`` as
calibration/demo/train.py writes them: each of all L x E experts is forbidden to its router alone,
and the loss of the answers is measured again, on the questions that were calibrated on (those that
the calibration documents are made of) and on the held-out ones. Statistics are of ``calibrate
--loss-aware`` on the former, as rows of prompt + completion. A line for each quantity: Spearman of
it against the true change in nats per answer token, of the worst domain, of the middle one, of all
domains together (mean over domains of both), and of all domains within one layer (mean over
layers). A quantity marked ± keeps its sign; "whole" is of a whole document's changes, not of each
token's. "size" is the mean true change over the mean foretold one: squares are in nats of the plain
loss when they are multiplied by the temperature's square. Two to ten minutes a model on one core.
--work keeps the true changes for a second time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM, AutoTokenizer

import moeprune
from moeprune import criteria, plugins
from moeprune.core.domain_stats import DomainStats
from moeprune.core.layout import MoeLayout
from moeprune.observe.layers import moe_layers
from moeprune.routing.mask import masked_experts
from moeprune.stages.identify import open_model

DEMO = Path(__file__).parents[2] / "calibration" / "demo"
ROWS = 75  # of one forward pass
COLUMNS = ("worst", "middle", "pooled", "layer")
Row = dict[str, str]
Array = NDArray[Any]

# name -> (L, E) nats that a domain's sums foretell, all target tokens together
FORETOLD: Mapping[str, Callable[[DomainStats], Array]] = {
    "fisher": lambda d: 0.5 * d.total("fisher_sum"),
    "fisher-cf": lambda d: 0.5 * d.total("fisher_cf_sum"),
    "abs-cf": lambda d: d.total("abs_cf_sum"),
    "whole fisher": lambda d: 0.5 * d.total("drop_change_sq_sum"),
    "whole fisher-cf": lambda d: 0.5 * d.total("cf_change_sq_sum"),
    "whole abs-cf": lambda d: d.total("cf_change_abs_sum"),
    "± drop": lambda d: d.total("drop_change_sum"),
    "± cf": lambda d: d.total("cf_change_sum"),
    "± cf + fisher-cf": lambda d: d.total("cf_change_sum") + 0.5 * d.total("fisher_cf_sum"),
    "± cf + whole fisher-cf": lambda d: (
        d.total("cf_change_sum") + 0.5 * d.total("cf_change_sq_sum")
    ),
}
PLAIN = ("reap", "reap-sum", "mass", "ean", "ean-sum", "frequency", "gate")


def calibrated_rows(folder: Path, domain: str) -> list[Row]:
    """The questions that the calibration documents of a domain are made of, each once."""
    found: dict[str, Row] = {}
    for line in (folder / "calibration" / f"{domain}.jsonl").read_text().splitlines():
        for asked in json.loads(line)["text"].splitlines():
            prompt, mark, answer = asked.partition(" A:")
            if mark and answer:
                found[asked] = {"prompt": f"{prompt} A:", "completion": f"{answer}\n"}
    return list(found.values())


def held_out_rows(folder: Path, domain: str) -> list[Row]:
    lines = (folder / "questions" / f"{domain}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{"prompt": row["prompt"], "completion": f"{row['answer']}\n"} for row in rows]


class Judge:
    """A model that is asked again and again what a domain's answers cost it."""

    def __init__(self, folder: Path, rows: Mapping[str, Sequence[Row]]) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
        self.layout: MoeLayout = open_model(folder / "model").layout
        self.layers = moe_layers(self.model, self.layout)
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        pad = tokenizer.pad_token_id
        self._batches = [
            (domain, _batch(tokenizer, list(part[at : at + ROWS]), pad))
            for domain, part in rows.items()
            for at in range(0, len(part), ROWS)
        ]

    @torch.inference_mode()
    def changes(self) -> dict[str, Array]:
        """Domain -> (L, E) nats per answer token that forbidding one expert adds."""
        found = {
            domain: np.zeros((len(self.layers), max(one.num_experts for one in self.layers)))
            for domain, _ in self._batches
        }
        tokens = dict.fromkeys(found, 0)
        for domain, batch in self._batches:
            tokens[domain] += int(batch["target"].sum())
            whole: dict[int, Any] = {}
            with _outputs(self.model, whole):
                base = self._loss(batch)
            for row, layer in enumerate(self.layers):
                with _from_layer(self.model, layer.layer, whole):
                    for expert in range(layer.num_experts):
                        with masked_experts(
                            self.model,
                            routers=[layer.router],
                            num_experts=[layer.num_experts],
                            removed=[[expert]],
                        ):
                            found[domain][row, expert] += self._loss(batch) - base
        return {domain: sums / tokens[domain] for domain, sums in found.items()}

    def _loss(self, batch: Mapping[str, torch.Tensor]) -> float:
        logits = self.model(
            input_ids=batch["ids"], attention_mask=batch["mask"], use_cache=False
        ).logits
        told = torch.log_softmax(logits[:, :-1].double(), dim=-1)
        own = told.gather(-1, batch["ids"][:, 1:, None])[..., 0]
        return -float(own[batch["target"][:, 1:]].sum())


def _batch(tokenizer: Any, rows: Sequence[Row], pad: int) -> dict[str, torch.Tensor]:
    ids = [tokenizer(row["prompt"] + row["completion"])["input_ids"] for row in rows]
    starts = [len(tokenizer(row["prompt"])["input_ids"]) for row in rows]
    width = max(map(len, ids))
    place = torch.arange(width)
    length = torch.tensor([len(one) for one in ids])[:, None]
    return {
        "ids": torch.tensor([[*one, *[pad] * (width - len(one))] for one in ids]),
        "mask": (place < length).long(),
        "target": (place >= torch.tensor(starts)[:, None]) & (place < length),
    }


@contextmanager
def _outputs(model: Any, found: dict[int, Any]) -> Iterator[None]:
    """Keep what each decoder layer gives."""
    hooks = [
        layer.register_forward_hook(
            lambda _module, _given, output, at=at: found.__setitem__(at, output)
        )
        for at, layer in enumerate(model.model.layers)
    ]
    yield
    for hook in hooks:
        hook.remove()


@contextmanager
def _from_layer(model: Any, first: int, known: Mapping[int, Any]) -> Iterator[None]:
    """Layers before ``first`` give what they gave: what changes behind them does not reach them."""
    for at in range(first):
        model.model.layers[at].forward = lambda *_args, at=at, **_kwargs: known[at]
    yield
    for at in range(first):
        del model.model.layers[at].forward


def correlations(foretold: Mapping[str, Array], true: Mapping[str, Array]) -> dict[str, float]:
    """Spearman of the worst domain, the middle one, the mean of all, and of that in a layer."""
    each = [_rank(foretold[domain], true[domain]) for domain in true]
    both = [np.mean([one[domain] for domain in true], axis=0) for one in (foretold, true)]
    layers = [_rank(one, other) for one, other in zip(*both, strict=True)]
    values = (min(each), statistics.median(each), _rank(*both), statistics.mean(layers))
    return dict(zip(COLUMNS, values, strict=True))


def _rank(foretold: Array, true: Array) -> float:
    return float(spearmanr(foretold.ravel(), true.ravel()).statistic)


def foretold_by(stats: Mapping[str, DomainStats]) -> dict[str, dict[str, Array]]:
    """Quantity -> domain -> (L, E)."""
    found: dict[str, dict[str, Array]] = {}
    for name, of in FORETOLD.items():
        found[name] = {
            domain: of(sums) / float(sums.total("loss_tokens")) for domain, sums in stats.items()
        }
    for name in PLAIN:
        criterion = plugins.load(criteria, name)
        found[name] = {
            domain: criterion.score({key: sums.total(key).astype(float) for key in criterion.NEEDS})
            for domain, sums in stats.items()
        }
    return found


def calibrated(
    folder: Path, rows: Mapping[str, Sequence[Row]], temperature: float
) -> dict[str, DomainStats]:
    with tempfile.TemporaryDirectory() as temporary:
        sources = {}
        for domain, part in rows.items():
            path = Path(temporary) / f"{domain}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
            sources[domain] = str(path)
        stats = moeprune.calibrate(
            folder / "model",
            domains=sources,
            dtype="float32",
            loss_aware=True,
            loss_temperature=temperature,
        )
    return {domain.name: domain for domain in stats.domains}


def true_changes(
    folder: Path, texts: Mapping[str, Mapping[str, Sequence[Row]]], work: Path | None
) -> dict[str, dict[str, Array]]:
    """Texts -> domain -> (L, E), measured, or as they were measured before."""
    kept = None if work is None else work / f"{folder.name}.npz"
    if kept is not None and kept.exists():
        with np.load(kept) as arrays:
            return {
                name: {domain: arrays[f"{name}/{domain}"] for domain in rows}
                for name, rows in texts.items()
            }
    found = {name: Judge(folder, rows).changes() for name, rows in texts.items()}
    if kept is not None:
        flat = {f"{name}/{d}": own for name, true in found.items() for d, own in true.items()}
        np.savez(kept, **flat)
    return found


def judged(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Texts -> quantity -> its correlations."""
    domains = sorted(path.stem for path in (folder / "questions").glob("*.jsonl"))
    texts = {
        "calibrated": {name: calibrated_rows(folder, name)[: options.rows] for name in domains},
        "held-out": {name: held_out_rows(folder, name)[: options.rows] for name in domains},
    }
    true = true_changes(folder, texts, options.work)
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in texts}
    for temperature in options.temperatures:
        stats = calibrated(folder, texts["calibrated"], temperature)
        for quantity, values in foretold_by(stats).items():
            by_loss = quantity in FORETOLD
            name = f"{quantity}, T = {temperature:g}" if by_loss else quantity
            for text, own in true.items():
                found[text][name] = correlations(values, own)
                if quantity in ("fisher", "fisher-cf", "whole fisher", "whole fisher-cf"):
                    sums = [sum(one[d].sum() for d in own) for one in (own, values)]
                    found[text][name]["size"] = sums[0] / sums[1] / temperature**2
    found["held-out"]["the true change of the calibrated"] = correlations(*true.values())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="*", default=[DEMO])
    parser.add_argument("--rows", type=int, default=150, help="of each domain, at most")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--work", type=Path, help="a folder for the true changes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for folder in options.folders:
        found = judged(folder, options)
        if options.json:
            print(json.dumps({"folder": folder.name, **found}))
            continue
        for texts, quantities in found.items():
            print(f"{folder.name}, {texts} questions")
            print(f"  {'Spearman':36}" + "".join(f"{key:>8}" for key in (*COLUMNS, "size")))
            for name, values in quantities.items():
                print(f"  {name:36}" + "".join(f"{value:8.3f}" for value in values.values()))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
