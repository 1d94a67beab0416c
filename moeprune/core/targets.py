"""What the runtimes can load, so that a plan is refused before anybody waits for its export.

docs/runtimes.md has the table in words and how each line was established.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeprune.core.facts import ModelFacts
from moeprune.errors import UsageError
from moeprune.plugins import known


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One runtime.

    Attributes:
        own_counts: loads different counts per layer, by the code in the exported folder.
        max_experts: most experts of a layer, None = no limit.
        fewer_groups: needs more experts in a layer than the router has groups.
    """

    own_counts: bool = False
    max_experts: int | None = None
    fewer_groups: bool = False


TARGETS: Mapping[str, Target] = {
    "transformers": Target(own_counts=True),
    "vllm": Target(),
    "llama.cpp": Target(max_experts=1024, fewer_groups=True),
    "mlx": Target(),
}
ANY = "any"
# Families whose router lets export --pad add experts that no token can choose: it has a bias on
# the logits, or one on scores that do not depend on each other. Each is tested, without groups.
PADDABLE = frozenset(
    {
        "afmoe",
        "axk1",
        "axk2",
        "bailing_hybrid",
        "beam",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "dots3_note_text",
        "exaone_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "glm4v_moe_text",
        "glm5_next_text",
        "glm_moe_dsa",
        "gpt_oss",
        "hy_v3",
        "hy_v4",
        "hy_v4_vl_text",
        "inkling2_text",
        "kimi_linear",
        "kolibri1",
        "laguna",
        "lfm2_moe",
        "mimo_v2_flash",
        "minimax_m2",
        "minimax_m3_vl_text",
        "muse_spark_text",
        "nemotron_h",
        "sarvam_mla",
        "sarvam_moe",
        "solar_open",
        "step3p5",
    }
)


def check_target(target: str | None, facts: ModelFacts, counts: Sequence[int]) -> str | None:
    """Check a plan against a runtime.

    Args:
        target: one of ``TARGETS``, ``"any"``: all of them, or None: none in particular.
        facts: the model.
        counts: (L,) experts that the layers keep.

    Returns:
        A warning: what the export must be asked for; or None.

    Raises:
        UsageError: the runtime could not load the pruned model; the message says why.
    """
    widest, least = max(counts), min(counts)
    for name in _named(target):
        limit = TARGETS[name]
        if least < facts.top_k:
            raise UsageError(
                f"--target {name}: a layer keeps {least} experts, each token runs {facts.top_k}; "
                "keep at least as many."
            )
        if facts.num_groups > 1 and any(count % facts.num_groups for count in counts):
            raise UsageError(
                f"--target {name}: a layer's experts must divide into the router's "
                f"{facts.num_groups} groups. Use --multiple-of {facts.num_groups}."
            )
        if limit.max_experts is not None and widest > limit.max_experts:
            raise UsageError(
                f"--target {name} loads at most {limit.max_experts} experts a layer, this plan "
                f"keeps {widest}. Remove more, or name another target."
            )
        if limit.fewer_groups and facts.num_groups > 1 and least <= facts.num_groups:
            raise UsageError(
                f"--target {name} needs more than {facts.num_groups} experts in a layer, one for "
                f"each router group; this plan keeps {least}. Remove fewer."
            )
        if widest != least and not _loads_own_counts(name, facts):
            raise UsageError(
                f"--target {name} {_needs_one_count(name)}, this plan keeps {least} to {widest}, "
                f"and {_why_not(name, facts)}. Use --allocation uniform without --keep-layers and "
                f"--layer-keep{_or_transformers(name, facts)}."
            )
    if widest == least:
        return None
    if target in (None, "transformers"):
        ways = ["with --pad"] if _paddable(facts) else []
        if not facts.no_per_layer:
            ways.insert(0, "with --per-layer (loads with trust_remote_code=True)")
        if not ways:
            return (
                "layers keep different numbers of experts, and no export can write that: "
                f"{_why_not('transformers', facts)}. Plan with --allocation uniform, without "
                "--keep-layers and --layer-keep."
            )
        return f"layers keep different numbers of experts: export {' or '.join(ways)}."
    return (
        f"layers keep different numbers of experts: for {target}, export with --pad, which fills "
        f"every layer up to {widest}."
    )


def allocation_for(target: str | None, facts: ModelFacts) -> tuple[str, str]:
    """The allocation that removes best of those that a runtime loads, and why, in a line.

    Args:
        target: see :func:`check_target`; None: none is named, so that it is enough if export can
            write different counts for one of them.
        facts: the model.

    Returns:
        ``"global"`` or ``"uniform"``; the reason.

    Raises:
        UsageError: no such target.
    """
    if facts.sets:
        return "uniform", "allocation uniform: the expert sets of a layer share one count"
    for name in _named(target) or ("transformers",):
        if not _loads_own_counts(name, facts):
            return "uniform", f"allocation uniform: {name} {_needs_one_count(name)}, and " + (
                _why_not(name, facts)
            )
    if target is None:
        return "global", (
            "allocation global: no --target is named, and transformers loads layers of different "
            "counts; --allocation uniform for one count that any runtime loads"
        )
    every = "every runtime" if target == ANY else target
    return "global", f"allocation global: {every} loads layers of different counts as exported"


def check_own_counts(target: str | None, facts: ModelFacts) -> None:
    """Check that a runtime can load layers of different counts, before a search for them.

    Args:
        target: see :func:`check_target`.
        facts: the model.

    Raises:
        UsageError: it cannot.
    """
    for name in _named(target):
        if not _loads_own_counts(name, facts):
            raise UsageError(
                f"--target {name} {_needs_one_count(name)}, a search finds different ones, and "
                f"{_why_not(name, facts)}. Use --method reap{_or_transformers(name, facts)}."
            )


def _named(target: str | None) -> tuple[str, ...]:
    if target is None:
        return ()
    known(target, (*TARGETS, ANY), kind="target")
    return tuple(TARGETS) if target == ANY else (target,)


def _loads_own_counts(name: str, facts: ModelFacts) -> bool:
    """Whether a runtime loads layers of different counts in some form that export writes."""
    return (TARGETS[name].own_counts and not facts.no_per_layer) or _paddable(facts)


def _paddable(facts: ModelFacts) -> bool:
    return facts.model_type in PADDABLE and facts.num_groups == 1 and not facts.no_pad


def _needs_one_count(name: str) -> str:
    if TARGETS[name].own_counts:
        return "reads different expert counts only as --per-layer writes them"
    return "reads one expert count for all layers"


def _why_not(name: str, facts: ModelFacts) -> str:
    reasons = [facts.no_per_layer] if TARGETS[name].own_counts else []
    if facts.num_groups > 1:
        reasons.append(f"--pad is not exact with {facts.num_groups} router groups")
    else:
        reasons.append(facts.no_pad or f"--pad is not exact for the router of {facts.model_type}")
    return "; ".join(reasons)


def _or_transformers(name: str, facts: ModelFacts) -> str:
    return "" if TARGETS[name].own_counts or facts.no_per_layer else ", or --target transformers"
