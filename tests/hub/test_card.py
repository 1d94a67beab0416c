"""The model card, read back by the Hub's own card loader and by a small reading of tables."""

from __future__ import annotations

import dataclasses
import re

import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.cost import Activated, Cost
from moeprune.core.plan import PrunePlan
from moeprune.hub.card import model_card
from moeprune.hub.markdown import copied_front_matter, escape, ranges, size

PLAN = PrunePlan(
    model_name="Qwen/Qwen3-30B-A3B",
    model_fingerprint="ab" * 32,
    model_type="qwen3_moe",
    top_k=2,
    layer_ids=(0, 2),
    num_experts=(8, 8),
    keep=((0, 1, 2, 5), (1, 3, 4, 7)),
    stats_sha256="cd" * 32,
    method="mesa",
    criterion="mass",
    allocation="uniform",
    options={"steps": 20, "boost": 0.15, "domain_weights": {"math": 2.0}},
    domain_loss={"math": 0.123456, "code": 0.2, "art": 0.1},
    worst_domain="code",
    worst_domain_loss=0.2,
    routing={"entropy_ratio": 0.93, "regime": "over-dispersed"},
    size={"bytes_before": 61_000_000_000, "bytes_after": 32_025_000_000},
    stability={"jaccard": 0.8},
    warnings=("3 experts saw no token.",),
)


def rows(text: str) -> list[list[str]]:
    """Cells of every table row, as GitHub's Markdown reads them: split at '|', then unescape."""
    found = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]
            found.append([re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell).strip() for cell in cells])
    return found


def test_front_matter_is_what_the_hub_reads() -> None:
    readme = (
        "\ufeff---\r\nlicense: other\r\nlicense_name: tongyi\r\nlicense_link: >-\r\n  LICENSE\r\n"
        "tags:\r\n- chat\r\nlanguage:\r\n- en\r\n- zh\r\nbase_model: a/b\r\n"
        "pipeline_tag: text-generation\r\n---\r\n# x\r\nlicense: no\r\n"
    )
    card = ModelCard(model_card(PLAN, source="Qwen/Qwen3-30B-A3B", source_readme=readme))
    assert card.data.to_dict() == {
        "license": "other",
        "license_name": "tongyi",
        "license_link": "LICENSE",
        "language": ["en", "zh"],
        "pipeline_tag": "text-generation",
        "base_model": "Qwen/Qwen3-30B-A3B",
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "tags": ["moeprune", "mixture-of-experts", "expert-pruning"],
    }


def test_a_local_source_is_no_base_model() -> None:
    card = ModelCard(model_card(PLAN, source="my model: [x]"))
    assert "base_model" not in card.data.to_dict()
    assert r"# my model: \[x\], 50% of its experts pruned" in card.text


def test_it_says_what_was_done() -> None:
    text = model_card(PLAN, source="Qwen/Qwen3-30B-A3B")
    table = rows(text)
    for row in (
        ["Family", "qwen3_moe"],
        ["MoE layers", "2"],
        ["Routed experts per layer", "8 → 4"],
        ["Routed experts in all", "16 → 8 (50.0% removed)"],
        ["Experts run per token", "2 (unchanged)"],
        ["Weights", "61.0 GB → 32.0 GB (47.5% smaller)"],
        ["Method", "mesa"],
        ["Criterion", "mass"],
        ["Allocation", "uniform"],
        ["Option boost", "0.15"],
        ["Option domain_weights", "math 2.0"],
        ["Option steps", "20"],
        ["Calibration domains", "art, code, math"],
        ["Calibration stats (sha256)", "cd" * 32],
        ["Router entropy / log2 E", "0.930 (over-dispersed)"],
        ["Stability (Jaccard of two halves of the text)", "0.800"],
        ["0", "4 of 8", "0-2, 5"],
        ["2", "4 of 8", "1, 3-4, 7"],
    ):
        assert row in table
    start = table.index(["Domain", "Router mass removed"])
    assert table[start + 2 : start + 5] == [
        ["**code** (worst)", "20.00%"],
        ["math", "12.35%"],
        ["art", "10.00%"],
    ]
    assert "Note: 3 experts saw no token." in text
    assert "memory falls, compute per token does not" in text
    assert "from_pretrained" in text and "vllm serve" in text
    assert "When Load-Balancing Goes Too Far" in text and "REAP" not in text
    assert "REAP" in model_card(dataclasses.replace(PLAN, criterion="reap"), source="x")
    assert "EvoESAP (arXiv" in model_card(dataclasses.replace(PLAN, method="evoesap"), source="x")


def test_it_claims_no_more_than_is_proven() -> None:
    """As the terminal does: of which plans, rounded down, and domains that weigh 0 stand aside."""
    plan = dataclasses.replace(PLAN, lower_bound=0.19999, options={"domain_weights": {"art": 0.0}})
    text = model_card(plan, source="x")
    assert "No uniform plan of this size can lose less than 19.99% in its worst domain" in text
    assert ["art (weighs 0)", "10.00%"] in rows(text)
    other = dataclasses.replace(plan, allocation="global", options={"keep_layers": [5]})
    claim = "No plan of this size under the same constraints can lose less than 19.99%"
    assert claim in model_card(other, source="x")


def test_same_plan_same_bytes_whatever_the_order_of_keys() -> None:
    shuffled = dataclasses.replace(
        PLAN,
        domain_loss=dict(reversed(PLAN.domain_loss.items())),
        options=dict(reversed(PLAN.options.items())),
    )
    assert model_card(PLAN, source="x") == model_card(shuffled, source="x")


def test_a_plan_written_by_hand_and_one_with_uneven_layers() -> None:
    bare = PrunePlan(
        model_name="m",
        model_fingerprint="f",
        model_type="olmoe",
        top_k=1,
        layer_ids=(5,),
        num_experts=(6,),
        keep=((2, 5),),
    )
    text = model_card(bare, source="m")
    assert "Not known" in text and "Weights" not in text and "66.7%" in text
    odd = dataclasses.replace(bare, size={"bytes_before": None}, routing={"entropy_ratio": "?"})
    assert "Weights" not in model_card(odd, source="m")
    uneven = dataclasses.replace(PLAN, keep=((0, 1, 2), (1, 3, 4, 7)))
    text = model_card(uneven, source="m", form="per-layer")
    assert ["Routed experts per layer", "8 → 3 to 4"] in rows(text)
    assert "trust_remote_code=True)" in text and "vllm serve" not in text
    sized = dataclasses.replace(uneven, size={**PLAN.size, "bytes_padding": 1_000_000})
    text = model_card(sized, source="m", form="padded")
    assert "filled up to 4" in text and "1.0 MB of the weights are such padding" in text
    assert "trust_remote_code=True)" not in text and "vllm serve" in text


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_name_breaks_out_of_its_cell(domain: str, source: str) -> None:
    plan = dataclasses.replace(PLAN, domain_loss={domain: 0.5}, worst_domain=None)
    text = model_card(plan, source=source)
    text.encode("utf-8")
    table = rows(text)
    start = table.index(["Domain", "Router mass removed"])
    shown = "".join(char if char.isprintable() else " " for char in domain)
    assert table[start + 2] == [" ".join(shown.split()), "50.00%"]
    assert table[start + 3] == ["Layer", "Kept", "Experts"]
    assert ModelCard(text).data.to_dict()["library_name"] == "transformers"
    assert text.count("\n# ") == 1


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a|b", r"a\|b"),
        ("<b>*x*</b>", r"\<b\>\*x\*\</b\>"),
        ("1. x", r"1\. x"),
        ("0.15", "0.15"),
        ("- x", r"\- x"),
        ("a\n\n# b", r"a \# b"),
        ("数学 é", "数学 é"),
        ("a\u202eb\x00c", "a b c"),
        ("`x` [y](z)", r"\`x\` \[y\](z)"),
    ],
)
def test_escape(text: str, want: str) -> None:
    assert escape(text) == want


@given(st.sets(st.integers(0, 40)))
def test_ranges_read_back(ids: set[int]) -> None:
    read: list[int] = []
    for part in filter(None, ranges(sorted(ids)).split(", ")):
        first, _, last = part.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == sorted(ids)


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 1000, 999_949, 999_999, 61_066_575_872, 2e15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "999.9 kB",
        "1.0 MB",
        "61.1 GB",
        "2000.0 TB",
    ]


@pytest.mark.parametrize(
    "readme",
    [
        None,
        "",
        "# x\nlicense: mit\n",
        "---\nlicense: mit\n",
        "text\n---\nlicense: mit\n---\n",
        "---\nx: &a mit\nlicense: *a\n---\n",
        "---\n  license: mit\n---\n",
    ],
)
def test_no_licence_is_made_up(readme: str | None) -> None:
    assert copied_front_matter(readme) == []


@pytest.mark.parametrize(
    ("criterion", "paper"),
    [
        ("reap", "2510.13999"),
        ("ean-sum", "2510.13999"),
        ("man", "2606.15716"),
        ("msan", "2606.15716"),
        ("mass", None),
        ("manual", None),
    ],
)
def test_the_paper_of_the_criterion_is_named(criterion: str, paper: str | None) -> None:
    card = model_card(dataclasses.replace(PLAN, criterion=criterion), source="org/model")
    assert "When Load-Balancing Goes Too Far" in card
    assert re.findall(r"\(arXiv (\S+)\): the criterion", card) == ([paper] if paper else [])


def test_the_bound_claims_no_more_than_is_proven() -> None:
    """Of a uniform plan it is that of uniform plans, and 21.6999 % is not 21.70 %."""
    uniform = dataclasses.replace(PLAN, lower_bound=0.0869990)
    assert "No uniform plan of this size can lose less than 8.69% in" in model_card(
        uniform, source="x"
    )
    free = dataclasses.replace(uniform, allocation="global", options={"layer_keep": {"0": 4}})
    says = "No plan of this size under the same constraints can lose less than 8.69% in"
    assert says in model_card(free, source="x")


def test_it_says_what_a_token_costs() -> None:
    native = Activated(
        routed=1_006_632_960,
        shared=125_911_040,
        other=1_813_887_616,
        routed_bytes=2_013_265_920,
        bytes_per_token=5_892_863_232,
    )
    half = dataclasses.replace(native, routed=503_316_480, bytes_per_token=4_886_230_272)
    fewer = dataclasses.replace(native, other=native.other - 10**6)
    text = model_card(PLAN, source="x", token=Cost(activated=half, native=native))
    assert ["Parameters a token activates", "2.946 B → 2.443 B (−17.1%)"] in rows(text)
    assert ["Weights that decoding one token reads", "5.9 GB → 4.9 GB"] in rows(text)
    text = model_card(PLAN, source="x", token=Cost(activated=fewer, native=native))
    assert ["Parameters a token activates", "2.945 B (in as many experts)"] in rows(text)
    assert "decoding one token" not in text


def test_what_was_predicted_of_the_loss() -> None:
    change = {"math": 0.02, "code": 0.031234, "art": 0.0}
    plan = dataclasses.replace(PLAN, predicted=change, worst_predicted="code")
    text = model_card(plan, source="a/b")
    table = rows(text)
    start = table.index(["Domain", "Router mass removed", "Predicted change of the loss"])
    assert table[start + 2 : start + 5] == [
        ["**code** (worst)", "20.00%", "+0.03123"],
        ["math", "12.35%", "+0.02"],
        ["art", "10.00%", "+0"],
    ]
    assert "in nats per target token" in text
    assert "nats" not in model_card(PLAN, source="a/b")
    part = dataclasses.replace(plan, predicted={"code": 0.1})  # edited, or of other stats
    assert "nats" not in model_card(part, source="a/b")
