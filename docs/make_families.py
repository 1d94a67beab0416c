"""Write docs/families.md from the family files and the test data; with --check, exit 1 if stale."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeprune.architectures import Family, family_names, load_family

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "families.md"
FACTS = ROOT / "tests" / "architectures" / "facts.json"
TESTED = ROOT / "tests" / "families" / "configs"

INTRO = """\
# Families

Made from `moeprune/architectures/families/` and the test data by `python docs/make_families.py`.

{tested} of {listed} entries are tested; the list is the Mixture-of-Experts language models of
transformers 5.24 and the multimodal models that hold one. Tested means: a tiny random checkpoint,
saved by transformers, goes through calibrate, plan, export and `verify --forward` (the logits equal
the masked original's); the export loads with `from_pretrained` without a missing, unexpected or
misshapen weight; every field of its stats equals a slow reference; its router's choice and weights
follow from the probabilities that calibrate computes. `python -m pytest -n 2 -m families` runs all
of them and prints the count.

- **Experts on disk**: *one by one*: tensors `experts.<number>.…`; export leaves out the removed and
  renumbers the others. *Stacked*: one tensor with an axis of experts, which export cuts. *Rows*:
  consecutive rows of one matrix, cut likewise.
- **Router**: what is cut with the weight: a selection *bias*, a *scale* per expert. *Extra rows*
  after the last expert's stay.
- **Probability**: how logits become router probabilities; for `softmax`, of all experts, also where
  the model takes the softmax of the chosen ones. *×*: the block multiplies what its experts add by
  a factor of config.json, which gate weights include.
- **Renormalised**: whether the router divides the weights that a token's experts get by their sum,
  or the config key that says so. Where it does, the native k₂ is k, elsewhere it is all experts
  ([how](k1-k2.md)). *Fixed*: no other number of experts can run, and k₁ and k₂ are refused.
- **Groups**: the router chooses groups of experts first where config.json says so; plans then
  remove the same number from every group.
- **Odd ones**: JetMoE's attention experts are a second set of every layer, with lines of their own
  in a plan. ERNIE 4.5 VL's vision experts, which text does not run, lose the ids of the text
  experts. LongCat's zero experts, ZAYA's skip and Inkling's sinks stay, behind the last kept
  expert. DeepSeek-V4's first layers choose by a table of tokens: a removed expert's places go to
  kept ones, evenly, never to one that the token has already. Layers that run several times count
  every pass. DiffusionGemma's experts serve an encoder and a decoder; both count
  ([how](concepts.md#what-is-measured)).

A model that is not in the table may still work: `moeprune inspect` says *inferred* where the family
was described from transformers' own classes, and *by the rule set* where only the names and shapes
of the tensors are known ([how](extend.md#a-family-without-a-file)). With its file hidden, each
tested family is either inferred to the layout that the list gives, or refused (one whose layers run
several times, by calibrate).

"""


def page() -> str:
    """The Markdown of docs/families.md."""
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    tested = _tested()
    lines = [
        "| family | experts on disk | router | probability | renormalised | groups | tested |",
        "|---|---|---|---|---|---|---|",
    ]
    for fact in sorted(facts, key=lambda fact: str(fact["entry"])):
        lines.append(_row(fact, tested[fact["entry"]]))
    body = INTRO.format(
        tested=sum(bool(tested[fact["entry"]]) for fact in facts), listed=len(facts)
    )
    listed = {fact["model_type"] for fact in facts} | {fact["text_model_type"] for fact in facts}
    others = [f"`{name}`" for name in family_names() if name not in listed]
    also = f"Also known by name, as another family's twin: {', '.join(others)}." if others else ""
    return body + "\n".join(lines) + "\n" + (f"\n{also}\n" if also else "")


def _tested() -> Counter[str]:
    """Entry -> files of test data."""
    found: Counter[str] = Counter()
    for path in TESTED.glob("*.json"):
        found[json.loads(path.read_text(encoding="utf-8")).get("entry", path.stem)] += 1
    return found


def _row(fact: dict[str, Any], tested: int) -> str:
    family = load_family(fact["text_model_type"], fact["model_type"])
    name = f"`{fact['entry']}`"
    if family.model_type != fact["entry"]:
        name += f" (text: `{family.model_type}`)"
    cells = [
        name,
        _experts(fact),
        _router(fact),
        _probability(family),
        _renormalised(family),
        "yes" if family.groups else "",
        "yes" if tested else "not yet",
    ]
    return "| " + " | ".join(cells) + " |"


def _experts(fact: dict[str, Any]) -> str:
    if any("{e}" in name for name in fact["experts"]):
        return "one by one"
    return "rows" if all(len(at["shape"]) == 2 for at in fact["experts"].values()) else "stacked"


def _router(fact: dict[str, Any]) -> str:
    parts = ["weight"]
    names = [name.rpartition(".")[2] for name in fact["router"]]
    if any("bias" in name for name in names):
        parts.append("bias")
    if any("scale" in name for name in names):
        parts.append("scale")
    if any(at["extra"] for at in fact["router"].values()):
        parts.append("extra rows")
    return ", ".join(parts)


def _renormalised(family: Family) -> str:
    if family.fixed_routing:
        return "fixed"
    rule = family.renormalises
    rules = dict(rule) if isinstance(rule, Mapping) else {"": rule}
    words = []
    for gating, one in rules.items():
        key = one if isinstance(one, str) else one[0]
        word = {"always": "yes", "never": "no"}.get(key, f"`{key}`")
        words.append(f"{gating}: {word}" if gating else word)
    return ", ".join(words)


def _probability(family: Family) -> str:
    text = family.gating
    if family.gating_key is not None:
        text += f" or as `{family.gating_key}` says"
    return text if family.scale is None else f"{text}; × `{family.scale}`"


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
