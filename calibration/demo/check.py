"""What the demo model can do, how its router spreads, and what removing experts does to it.

`python calibration/demo/check.py` prints the tables of README.md. Experts are removed in memory
here, in the plainest way, so that these numbers do not depend on the package they help to test.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from questions import DOMAINS
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

# L MoE layers, E experts per layer, B rows, T tokens of a row
HERE = Path(__file__).resolve().parent
ROWS = 64  # questions per forward


def read_jsonl(path: Path) -> list[dict[str, str]]:
    """The rows of a JSON lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def pad(rows: Sequence[Sequence[int]], *, pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids (B, T) padded on the right, and their mask (B, T): 1 for a token, 0 for padding."""
    width = max(len(row) for row in rows)
    ids_BT = torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows])
    mask_BT = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids_BT, mask_BT


@torch.no_grad()
def right_answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, str]]
) -> list[bool]:
    """Whether greedy decoding of each prompt gives its answer and then the end of sequence.

    Greedy decoding agrees with the answer exactly when every token of it is the most likely one
    after the prompt and the tokens before it, so one forward without generation is enough.
    """
    right: list[bool] = []
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        prompts = [len(tokenizer(row["prompt"])["input_ids"]) for row in part]
        texts = [row["prompt"] + row["answer"] + tokenizer.eos_token for row in part]
        full = [tokenizer(text)["input_ids"] for text in texts]
        ids_BT, mask_BT = pad(full, pad_id=tokenizer.pad_token_id)
        best_BT = model(ids_BT, attention_mask=mask_BT).logits.argmax(-1)
        for row, (prompt, ids) in enumerate(zip(prompts, full, strict=True)):
            right.append(best_BT[row, prompt - 1 : len(ids) - 1].tolist() == ids[prompt:])
    return right


def accuracy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path = HERE
) -> dict[str, float]:
    """Share of right answers per domain, over the held-out questions of `folder`."""
    found = {}
    for domain in DOMAINS:
        right = right_answers(model, tokenizer, read_jsonl(folder / f"questions/{domain}.jsonl"))
        found[domain] = sum(right) / len(right)
    return found


@torch.no_grad()
def router_probabilities(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> Iterator[Tensor]:
    """Full-softmax router probabilities (L, T, E) of one calibration document after another."""
    for domain in DOMAINS:
        for row in read_jsonl(folder / f"calibration/{domain}.jsonl"):
            ids_BT = torch.tensor([tokenizer(row["text"])["input_ids"]])
            logits = model(ids_BT, output_router_logits=True).router_logits
            yield torch.stack(logits).double().softmax(-1)


def spread_and_mass(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path = HERE
) -> tuple[float, Tensor]:
    """Mean router entropy over log2 E, of all layers and tokens, and the router mass (L, E)."""
    entropy, tokens, experts, mass_LE = 0.0, 0, 0, torch.zeros(())
    for prob_LTE in router_probabilities(model, tokenizer, folder):
        layers, length, experts = prob_LTE.shape
        entropy += -(prob_LTE * prob_LTE.log2()).sum().item()
        tokens += layers * length
        mass_LE = mass_LE + prob_LTE.sum(1)
    return entropy / tokens / math.log2(experts), mass_LE


@torch.no_grad()
def reap(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Tensor:
    """Mean gate weight times output norm over the tokens of each expert (L, E): REAP's score."""
    layers, experts = len(model.model.layers), model.config.num_experts
    total_LE, count_LE = torch.zeros(2, layers, experts, dtype=torch.float64)

    def observe(layer: int) -> Callable[[Any, tuple[Tensor, Tensor, Tensor]], None]:
        def hook(module: Any, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
            hidden_TH, ids_TK, gate_TK = inputs
            for expert in range(experts):
                token, slot = torch.where(ids_TK == expert)
                gate, up = (hidden_TH[token] @ module.gate_up_proj[expert].T).chunk(2, dim=-1)
                out = (module.act_fn(gate) * up) @ module.down_proj[expert].T
                total_LE[layer, expert] += (gate_TK[token, slot] * out.norm(dim=-1)).sum()
                count_LE[layer, expert] += len(token)

        return hook

    hooks = [
        layer.mlp.experts.register_forward_pre_hook(observe(number))
        for number, layer in enumerate(model.model.layers)
    ]
    for _ in router_probabilities(model, tokenizer, folder):
        pass
    for hook in hooks:
        hook.remove()
    score_LE: Tensor = total_LE / count_LE.clamp(min=1)
    return score_LE


def without_experts(model: PreTrainedModel, keep: Sequence[Sequence[int]]) -> PreTrainedModel:
    """A copy of the model that has only the named experts of each layer, router rows included."""
    pruned = copy.deepcopy(model)
    for layer, kept in zip(pruned.model.layers, keep, strict=True):
        kept_ids = torch.tensor(sorted(kept))
        gate, experts = layer.mlp.gate, layer.mlp.experts
        gate.weight = nn.Parameter(gate.weight[kept_ids])
        experts.gate_up_proj = nn.Parameter(experts.gate_up_proj[kept_ids])
        experts.down_proj = nn.Parameter(experts.down_proj[kept_ids])
        gate.num_experts = experts.num_experts = len(kept_ids)
    return pruned


def random_keep(*, layers: int, experts: int, ratio: float, seed: int) -> list[list[int]]:
    """For each layer the experts that stay when a random share `ratio` leaves."""
    draw = torch.Generator().manual_seed(seed)
    stay = experts - round(experts * ratio)
    return [torch.randperm(experts, generator=draw)[:stay].tolist() for _ in range(layers)]


def main() -> None:
    """Print accuracy, router spread and the effect of removing experts, as Markdown."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(HERE / "model")
    model = AutoModelForCausalLM.from_pretrained(HERE / "model").eval()
    spread, mass_LE = spread_and_mass(model, tokenizer)
    scores = {"router mass": mass_LE, "REAP": reap(model, tokenizer, HERE)}
    layers, experts = mass_LE.shape
    print(f"mean router entropy: {spread:.3f} of log2 {experts}\n")
    print("| model |", " | ".join(DOMAINS), "| all |")
    print("|---|", "---|" * (len(DOMAINS) + 1), sep="")

    def show(name: str, shown: PreTrainedModel) -> None:
        found = accuracy(shown, tokenizer)
        cells = [f"{value:.0%}" for value in (*found.values(), sum(found.values()) / len(found))]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)

    show("whole", model)
    for ratio in (0.25, 0.5):
        for seed in range(3):
            keep = random_keep(layers=layers, experts=experts, ratio=ratio, seed=seed)
            show(f"{ratio:.0%} removed at random, seed {seed}", without_experts(model, keep))
        stay = experts - round(experts * ratio)
        for name, score_LE in scores.items():
            top = score_LE.topk(stay, dim=1).indices.tolist()
            show(f"{ratio:.0%} removed, least {name}", without_experts(model, top))


if __name__ == "__main__":
    main()
