r"""Train the demo model: a small Qwen3-MoE that answers short questions of six domains.

    python calibration/demo/train.py

writes `model/`, `calibration/` and `questions/` next to this file. Same seed, same machine, same
versions: the same bytes.

The text format is one line per question: `prompt + answer + "\n"`. A character is a token, and the
newline is the end-of-sequence token, so a document of several questions is plain text. The
tokenizer adds nothing by itself; half of the training rows begin with <bos>, so the model answers
with and without it. Three quarters of the batches hold single questions, one quarter documents.

The router is over-dispersed on purpose, as in the models this project is about: the family's own
load-balancing loss with a high coefficient evens out how often experts are used, and a hinge on
the entropy of each token's router softmax keeps it from falling below MIN_SPREAD of its maximum,
which the balancing loss, a statement about averages, does not see.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from check import HERE, accuracy, pad, spread_and_mass
from questions import DOMAINS, Question, Split, by_subject, split
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

# B rows, T tokens of a row, E experts, V characters
CYCLES = ((3000, 3e-3), (2400, 2e-3))  # steps and peak learning rate, each with its own cosine
WARMUP, WEIGHT_DECAY = 100, 0.1
SINGLES, DOCUMENTS, DOCUMENT_LENGTH = 72, 8, 360  # rows of a batch of each kind; characters
QUESTION_WEIGHT = 0.05  # weight of a question's own characters in the loss; an answer's have 1
BALANCE, SPREAD, MIN_SPREAD = 0.05, 2.0, 0.9
BIAS_STEP = 0.002  # of the balancing bias of a sigmoid router, per batch
SHARES = (*DOMAINS, "math")  # domains of the batches in turn; math is the hardest
HELD_OUT, CALIBRATION_DOCUMENTS = 150, 64  # written per domain
SPECIAL = ("<pad>", "<bos>", "<unk>", "\n")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character: the newline, which ends a sequence, and all printable ASCII."""
    characters = [*SPECIAL, *(chr(code) for code in range(32, 127))]
    vocab = {character: number for number, character in enumerate(characters)}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        unk_token="<unk>",
        eos_token="\n",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained; the defaults are the demo model, the others make relatives of it.

    Attributes:
        family: `qwen3_moe` (softmax, renormalised) or `glm4_moe` (sigmoid, a balancing bias that
            chooses and does not weigh, a shared expert).
        layers: each with experts.
        experts: of each layer; 4 run per token.
        expert_width: of one expert.
        balance: coefficient of the family's load-balancing loss; a sigmoid router has none, its
            bias is moved instead.
        spread: coefficient of the hinge on the entropy of the router's softmax.
    """

    family: str = "qwen3_moe"
    layers: int = 4
    experts: int = 16
    expert_width: int = 48
    balance: float = BALANCE
    spread: float = SPREAD


def make_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> PreTrainedModel:
    """The untrained model; the demo's has 1.5 million parameters."""
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "moe_intermediate_size": recipe.expert_width,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if recipe.family == "glm4_moe":
        return Glm4MoeForCausalLM(
            Glm4MoeConfig(
                **shape,
                n_routed_experts=recipe.experts,
                n_shared_experts=1,
                first_k_dense_replace=0,
            )
        )
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**shape, num_experts=recipe.experts, router_aux_loss_coef=recipe.balance)
    )


def answer_weights(text: str) -> list[float]:
    """The loss weight of each character of a text of whole lines."""
    weights: list[float] = []
    for line in text.splitlines(keepends=True):
        prompt = line.rindex(" A:") + len(" A:")
        weights += [QUESTION_WEIGHT] * prompt + [1.0] * (len(line) - prompt)
    return weights


def draw(subjects: Sequence[Sequence[Question]], rng: random.Random) -> str:
    """The line of one question; every fact and every kind of task is as likely as the others."""
    return rng.choice(rng.choice(subjects)).text


def document(subjects: Sequence[Sequence[Question]], rng: random.Random, *, length: int) -> str:
    """Lines drawn from one domain, joined until they have about `length` characters."""
    text = ""
    while len(text) < length:
        text += draw(subjects, rng)
    return text


def batches(splits: dict[str, Split], rng: random.Random) -> Iterator[list[str]]:
    """Texts of one batch after another, without end; the domains take turns.

    Single questions come in four batches of like length, so that little of a batch is padding;
    every fourth batch is of documents.
    """
    train = [by_subject(splits[domain].train) for domain in SHARES]
    while True:
        drawn = [draw(train[i % len(train)], rng) for i in range(3 * SINGLES)]
        drawn.sort(key=len)
        group = [drawn[start : start + SINGLES] for start in range(0, len(drawn), SINGLES)]
        length = rng.randint(DOCUMENT_LENGTH // 2, DOCUMENT_LENGTH)
        group.append([document(rng.choice(train), rng, length=length) for _ in range(DOCUMENTS)])
        rng.shuffle(group)
        yield from group


def mean_entropy(router_logits: Sequence[Tensor], mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Router entropy over log2 E: mean, and mean shortfall, of all layers and tokens."""
    logits = torch.stack(list(router_logits))[:, mask_BT.flatten().bool()]
    log_prob = logits.log_softmax(-1)
    spread = -(log_prob.exp() * log_prob).sum(-1) / math.log(logits.shape[-1])
    return spread.mean(), (MIN_SPREAD - spread).clamp(min=0).mean()


def load_of(model: PreTrainedModel) -> list[Tensor]:
    """Experts chosen by each layer's sigmoid router, filled by every forward pass."""
    loads: list[Tensor] = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _gate, _inputs, out: loads.append(out[2]))
    return loads


def move_biases(model: PreTrainedModel, loads: list[Tensor]) -> str:
    """Raise the balancing bias of experts that were used too little, lower the others'.

    Says how uneven the use was: the largest share over the mean one.
    """
    uneven = 0.0
    for layer, ids_TK in zip(model.model.layers, loads, strict=True):
        bias_E = layer.mlp.gate.e_score_correction_bias
        count_E = torch.bincount(ids_TK.flatten(), minlength=len(bias_E)).to(bias_E)
        bias_E += BIAS_STEP * (count_E.mean() - count_E).sign()
        uneven = max(uneven, (count_E.max() / count_E.mean()).item())
    loads.clear()
    return f"largest load {uneven:.2f} of the mean"


def train_cycle(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    splits: dict[str, Split],
    recipe: Recipe,
    *,
    steps: int,
    peak_lr: float,
    seed: int,
) -> None:
    """Fit the model in place, with a fresh optimizer; progress goes to stderr."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peak_lr, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY
    )

    def rate(step: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return min(1.0, (step + 1) / WARMUP) * (0.02 + 0.98 * cosine)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    sigmoid = recipe.family == "glm4_moe"
    loads = load_of(model) if sigmoid else []
    started = time.monotonic()
    for step, texts in zip(range(1, steps + 1), batches(splits, rng), strict=False):
        rows = [tokenizer(text)["input_ids"] for text in texts]
        weights = [answer_weights(text) for text in texts]
        if rng.random() < 0.5:
            rows = [[tokenizer.bos_token_id, *row] for row in rows]
            weights = [[0.0, *row] for row in weights]
        ids_BT, mask_BT = pad(rows, pad_id=tokenizer.pad_token_id)
        width = ids_BT.shape[1]
        weight_BT = torch.tensor([row + [0.0] * (width - len(row)) for row in weights])[:, 1:]
        asked = {} if sigmoid else {"output_router_logits": True}
        out = model(ids_BT, attention_mask=mask_BT, use_cache=False, **asked)
        nll = functional.cross_entropy(
            out.logits[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none"
        )
        fit = (nll * weight_BT.flatten()).sum() / weight_BT.sum()
        if sigmoid:
            loss, said = fit, move_biases(model, loads)
        else:
            spread, shortfall = mean_entropy(out.router_logits, mask_BT)
            loss = fit + recipe.balance * out.aux_loss + recipe.spread * shortfall
            said = f"balance {out.aux_loss.item():.3f}  spread {spread.item():.3f}"
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps:
            used = time.monotonic() - started
            left = used / step * (steps - step) / 60
            print(
                f"step {step}/{steps}  loss {fit.item():.3f}  {said}  "
                f"{used / 60:.1f} min used, {left:.1f} min left",
                file=sys.stderr,
                flush=True,
            )


def write_jsonl(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows as JSON lines, keys in the order given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_data(splits: dict[str, Split], out: Path, *, seed: int) -> None:
    """Write the held-out questions and the calibration documents of every domain."""
    for domain, made in splits.items():
        seen = {question.prompt for question in (*made.train, *made.calibration)}
        held_out = made.held_out[:HELD_OUT]
        assert not any(question.prompt in seen for question in held_out)
        write_jsonl(
            out / f"questions/{domain}.jsonl",
            [
                {"id": f"{domain}-{number:04}", "prompt": asked.prompt, "answer": asked.answer}
                for number, asked in enumerate(held_out, start=1)
            ],
        )
        subjects = by_subject(made.calibration)
        rng = random.Random(f"{seed} documents {domain}")
        write_jsonl(
            out / f"calibration/{domain}.jsonl",
            [
                {"text": document(subjects, rng, length=rng.randint(200, 420))}
                for _ in range(CALIBRATION_DOCUMENTS)
            ],
        )


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the checkpoint as transformers does, with the expert count under both of its names."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    if model.config.model_type == "qwen3_moe":
        config = json.loads((out / "config.json").read_text())
        # Published files say num_experts, transformers 5 writes num_local_experts; an export must
        # rewrite every key that is there, and this model is where that is tried first.
        config["num_experts"] = config["num_local_experts"] = model.config.num_experts
        (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    # transformers 5 names its own class here, which other readers do not know; both read this one.
    settings = json.loads((out / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (out / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2, sort_keys=True) + "\n"
    )


def main() -> None:
    """Make the data, train, and write everything."""
    parser = argparse.ArgumentParser(description="Train the demo model of moeprune.")
    parser.add_argument("-o", "--out", type=Path, default=HERE, help="folder to write into")
    parser.add_argument("--steps", type=int, help="one cycle of so many steps, to try a change")
    parser.add_argument("--seed", type=int, default=0)
    plain = Recipe()
    parser.add_argument("--family", choices=("qwen3_moe", "glm4_moe"), default=plain.family)
    parser.add_argument("--layers", type=int, default=plain.layers)
    parser.add_argument("--experts", type=int, default=plain.experts)
    parser.add_argument("--expert-width", type=int, default=plain.expert_width)
    parser.add_argument("--balance", type=float, default=plain.balance)
    parser.add_argument("--spread", type=float, default=plain.spread)
    args = parser.parse_args()
    # One thread: sums then have one order, and the file the same bytes.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    splits = {domain: split(domain, seed=args.seed) for domain in DOMAINS}
    write_data(splits, args.out, seed=args.seed)
    tokenizer = make_tokenizer()
    recipe = Recipe(**{name: getattr(args, name) for name in Recipe.__slots__})
    model = make_model(tokenizer, recipe)
    model.set_experts_implementation("grouped_mm")
    cycles = ((args.steps, CYCLES[0][1]),) if args.steps else CYCLES
    for number, (steps, peak_lr) in enumerate(cycles):
        seed = args.seed + number
        train_cycle(model, tokenizer, splits, recipe, steps=steps, peak_lr=peak_lr, seed=seed)
    model.eval()
    save(model, tokenizer, args.out / "model")
    for domain, share in accuracy(model, tokenizer, args.out).items():
        print(f"{domain}: {share:.1%} of the held-out questions answered")
    if recipe.family == "qwen3_moe":
        spread, _ = spread_and_mass(model, tokenizer, args.out)
        print(f"mean router entropy: {spread:.3f} of its maximum")


if __name__ == "__main__":
    main()
