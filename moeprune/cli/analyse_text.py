"""How an analysis reads on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeprune.cli.analyse_gains import gains_text
from moeprune.cli.text import table


def analysis_text(body: Mapping[str, Any], path: Path) -> str:
    """What ``moeprune analyse`` prints."""
    model = body["model"]
    experts = [layer["num_experts"] for layer in body["layers"]]
    low, high = min(experts), max(experts)
    lines = [
        f"{model['name']}: {_number(len(experts), 'MoE layer')} x "
        f"{_number(high, 'expert') if low == high else f'{low} to {high} experts'}, "
        f"top-{model['top_k']}; {_number(len(body['domains']), 'domain')}",
        *_entropy(body["entropy"], body["attention"]),
        *_mass(body["mass"], model["top_k"]),
        *gains_text(body["routing_profile"], num_experts=high),
        *_domains(body["divergence"], body["overlap"]),
        *(_regime(body["regime"]) if len(body["domains"]) > 1 else ()),
        *_sensitivity(body["sensitivity"]),
        *_plans(body["plans"]),
        f"written to {path}",
    ]
    return "\n".join(lines)


def _entropy(
    entropy: Mapping[str, Any], attention: Mapping[str, Mapping[str, Any]] | None
) -> list[str]:
    by_layer = [ratio for ratio in entropy["ratio_by_layer"] if ratio is not None]
    spread = f", layers {min(by_layer):.1%} to {max(by_layer):.1%}" if by_layer else ""
    lines = [f"router entropy {entropy['ratio']:.1%} of its maximum{spread}: {entropy['regime']}"]
    bits = [
        f"{mean:.2f} ± {deviation:.2f}"
        for mean, deviation in zip(entropy["mean"], entropy["deviation"], strict=True)
    ]
    # Of few layers each once: a later name takes the place of an earlier one.
    shown = {len(bits) // 2: "middle", 0: "first layer", len(bits) - 1: "last"}
    if len(bits) == 1:
        shown = {0: "the layer"}
    lines.append(
        "  bits of a token, mean ± deviation: "
        + ", ".join(f"{shown[place]} {bits[place]}" for place in sorted(shown))
    )
    of_domains = {
        name: own["ratio"] for name, own in entropy["by_domain"].items() if own["ratio"] is not None
    }
    if len(of_domains) > 1:
        ordered = sorted(of_domains, key=lambda name: (of_domains[name], name))
        lines.append(
            f"  lowest in {ordered[0]} ({of_domains[ordered[0]]:.1%}), highest in {ordered[-1]} "
            f"({of_domains[ordered[-1]]:.1%})"
        )
    for kind, group in (attention or {}).items():
        lines.append(f"  {kind}: {_share(group['entropy_ratio'])} in {len(group['layers'])} layers")
    return lines


def _mass(mass: Mapping[str, Any], top_k: int) -> list[str]:
    at = mass["top"].index(top_k)
    ranks = mass["top_ranks"]
    half = next(place for place, share in enumerate(mass["top_experts"]["mean"]) if share >= 0.5)
    kept = mass["top_experts"]
    likeliest, used = (
        f"{word} expert holds" if number == 1 else f"{number} {word} experts hold"
        for word, number in (("likeliest", top_k), ("most used", mass["top"][half]))
    )
    return [
        f"a token's {likeliest} {ranks['mean'][at]:.1%} of its router mass "
        f"(layers {ranks['least'][at]:.1%} to {ranks['most'][at]:.1%})",
        f"a layer's {used} {kept['mean'][half]:.1%} of all mass "
        f"(layers {kept['least'][half]:.1%} to {kept['most'][half]:.1%})",
    ]


def _domains(divergence: Mapping[str, Any], overlap: list[Mapping[str, Any]]) -> list[str]:
    if divergence["between"] is None:
        return ["one domain: nothing to compare"]
    layers = len(divergence["between"])
    between = sum(divergence["between"]) / layers
    if divergence["noise"] is None:
        floor = "noise floor not known, a domain has too few documents to be halved"
    else:
        noise = sum(divergence["noise"]) / layers
        floor = (
            f"noise floor {noise:.2g}, above it in {divergence['layers_above_noise']} of {layers} "
            "layers"
        )
    lines = [f"domains differ by {between:.2g} bits (Jensen-Shannon, mean of pairs); {floor}"]
    by_between = sorted(divergence["pairs"], key=lambda pair: pair["between"])
    extremes = (("most alike", by_between[0]), ("least alike", by_between[-1]))
    for word, pair in extremes if len(by_between) > 1 else ():
        lines.append(f"  {word}: {' and '.join(pair['domains'])} ({pair['between']:.2g})")
    quarter = next(found for found in overlap if found["size"] == "0.25")
    same = quarter["same_domain"]
    lines.append(
        f"  their top quarters of experts overlap by {quarter['mean']:.2f}, chance "
        f"{quarter['chance']:.2f}"
        + ("" if same is None else f", two halves of one domain {same:.2f}")
    )
    return lines


def _regime(regime: Mapping[str, Any]) -> list[str]:
    own = regime["measured"]
    if own["tau"] is None:
        return []
    near = min(
        regime["simulated"], key=lambda point: abs(point["entropy_ratio"] - own["entropy_ratio"])
    )
    return [
        f"the ranking by all domains follows that of the worst-off one by τ = {own['tau']:.2f}; "
        f"simulated at entropy {near['entropy_ratio']:.1%}: {near['tau']:.2f}"
    ]


def _sensitivity(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return ["sensitivity of mesa: the model cannot lose a quarter of its experts, see --ratio"]
    lines = [f"sensitivity of mesa at ratio {found['ratio']:g}, {found['allocation']}:"]
    rows = [["  setting", "worst domain loses", "same plan", "best step", "oscillation"]]
    for name in ("steps", "boost", "decay"):
        for line in found[name]:
            rows.append(
                [
                    f"  {name} {line[name]}",
                    f"{line['loss']:.3%}",
                    f"{line['jaccard']:.0%}",
                    str(line["best_step"]),
                    f"{line['oscillation']:.5f}",
                ]
            )
    lines.append(table(rows))
    if not found["volume"]:
        lines.append(
            "  how much text is enough is not known: of some domain, one of the four folds is empty"
        )
    else:
        rows = [["  text", "mesa: same plan", "worst domain loses", "reap: same plan"]]
        rows += [
            [
                f"  {line['folds']} of 4 folds",
                f"{line['mesa']['jaccard']:.0%}",
                f"{line['mesa']['loss']:.3%}",
                f"{line['reap']['jaccard']:.0%}",
            ]
            for line in found["volume"]
        ]
        lines.append(table(rows))
    return lines


def _plans(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    rows = [["plans", "same experts leave", "chance"]]
    rows += [
        [" / ".join(pair["plans"]), f"{pair['jaccard']:.0%}", f"{pair['chance']:.0%}"]
        for pair in found["pairs"]
    ]
    lines = [table(rows)] if found["pairs"] else []
    for name, plan in found["plans"].items():
        if plan["predicted"] is not None:
            worst = plan["predicted"]["worst"]
            most = plan["predicted"]["domains"][worst]
            lines.append(f"{name}: predicted change of the loss, most in {worst}: {most:+.4g} nats")
    return lines + [
        f"{name} was edited by hand; the losses in it are of the plan before, and not shown"
        for name, plan in found["plans"].items()
        if plan["edited"]
    ]


def _number(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
