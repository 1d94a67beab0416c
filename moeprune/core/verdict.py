"""Method auto: what the stats say for best, for mesa and against it, and the rule that decides.

Where the stats hold gradients of a loss, ``best`` is taken: docs/loss-aware.md has what was seen of
it. Elsewhere REAP is the default, and mesa has to earn its place: chosen wrongly, mesa costs far
more than it gains chosen rightly. Where its paper has it ahead (gpt-oss-20b, table 2), it gains 18
points in the worst domain and 1.3 on average; where it is not meant for the model (Mixtral, table
5), accuracy falls to 63 % of the unpruned model's against REAP's 98 %. docs/planning.md has what
was seen of the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from moeprune.core.diagnosis import OVER_DISPERSED

MESA, REAP, BEST = "mesa", "reap", "best"

STABLE = 0.8  # docs/concepts.md: below, too much of a plan is chance
# Mass must see at least this share of what two halves of the text agree on by REAP.
_AGREEMENT_SHARE = 0.5
# The held-out gain must lie this many standard deviations (over trials) above nothing.
_DEVIATIONS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured; ``None`` where a domain has too few documents to be halved.

    Attributes:
        regime: ``"over-dispersed"`` or ``"standard"``.
        entropy_ratio: mean router entropy over its maximum.
        entropy_ratio_lowest: of the layer where it is lowest.
        entropy_ratio_highest: of the layer where it is highest.
        domains: how many count.
        stability: method -> Jaccard overlap of the plans of two halves of the text.
        overlap: ``"mesa"`` (its plan) and ``"mass"`` (ranking by mass) -> Jaccard with reap's.
        overlap_by_chance: what two random plans of these sizes have.
        agreement: of mesa's plan and reap's: overlap above chance, 1 = the same plan.
        agreement_of_halves: the same of reap's own plans from two halves of the text.
        gain: what mesa saves the worst domain over ranking by the same mass, planned on one half of
            the text and measured on the other: mean over the six trials, share of router mass.
        gain_deviation: standard deviation over the trials.
        worst_domain: method -> the domain that loses most.
        worst_domain_loss: method -> its loss.
        loss: whether the stats hold gradients of a loss, so that ``best`` may be chosen.
    """

    regime: str
    entropy_ratio: float
    entropy_ratio_lowest: float
    entropy_ratio_highest: float
    domains: int
    stability: Mapping[str, float | None]
    overlap: Mapping[str, float]
    overlap_by_chance: float
    agreement: float
    agreement_of_halves: float | None
    gain: float | None
    gain_deviation: float | None
    worst_domain: Mapping[str, str]
    worst_domain_loss: Mapping[str, float]
    loss: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the plan."""
        body = asdict(self)
        if not self.loss:
            del body["loss"]
        return body


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which method, and why.

    Attributes:
        method: ``"best"``, ``"mesa"`` or ``"reap"``.
        reasons: three lines: the regime, the signals, the decision.
    """

    method: str
    reasons: tuple[str, str, str]


def verdict(seen: Evidence) -> Verdict:
    """Best if it can be; else mesa if nothing speaks against it, else reap, and why not mesa."""
    method, because = (
        MESA,
        (
            "the routing is over-dispersed, the plan is stable, what it saves the worst domain "
            "holds on other text, and router mass agrees with reap on what can leave"
        ),
    )
    objections = () if seen.loss else _OBJECTIONS
    if seen.loss:
        method, because = (
            BEST,
            (
                "the stats hold gradients of the loss, which say what an expert is worth to it; "
                "where answers were counted, it kept more of the worst domain's than what the "
                "routing says, on most models"
            ),
        )
    for holds, objection in objections:
        if holds(seen):
            method, because = REAP, objection
            break
    beside = f"; compare with --method {MESA}" if seen.regime == OVER_DISPERSED else ""
    return Verdict(
        method,
        (
            f"regime: router entropy is {seen.entropy_ratio:.1%} of its maximum (layers "
            f"{seen.entropy_ratio_lowest:.1%} to {seen.entropy_ratio_highest:.1%}), {seen.regime}; "
            "the MESA paper draws its soft line at 85%",
            f"signals: two halves of the text agree on {_percent(seen.stability[MESA])} of mesa's "
            f"plan and {_percent(seen.stability[REAP])} of reap's; the two plans share "
            f"{seen.overlap[MESA]:.0%} of what leaves, chance {seen.overlap_by_chance:.0%}; "
            f"worst domain loses {_loss(seen, MESA)} by mesa, {_loss(seen, REAP)} by reap",
            f"chosen {method}: {because}" + (beside if method == REAP else ""),
        ),
    )


def _standard(seen: Evidence) -> bool:
    return seen.regime != OVER_DISPERSED


def _one_domain(seen: Evidence) -> bool:
    return seen.domains < 2


def _unknown(seen: Evidence) -> bool:
    return seen.gain is None


def _unstable(seen: Evidence) -> bool:
    mesa, reap = seen.stability[MESA], seen.stability[REAP]
    assert mesa is not None and reap is not None
    return mesa < min(STABLE, reap)


def _no_gain(seen: Evidence) -> bool:
    assert seen.gain is not None and seen.gain_deviation is not None
    return seen.gain <= _DEVIATIONS * seen.gain_deviation


def _disagree(seen: Evidence) -> bool:
    assert seen.agreement_of_halves is not None
    return seen.agreement < _AGREEMENT_SHARE * seen.agreement_of_halves


# In order: each may rely on those before it not holding.
_OBJECTIONS: tuple[tuple[Callable[[Evidence], bool], str], ...] = (
    (_standard, "the routing is peaked, and there the paper saw mesa lose far more than reap"),
    (_one_domain, "mesa protects domains from each other, and only one counts"),
    (
        _unknown,
        "a domain has too few documents to be halved, so nothing tells mesa's signal from noise",
    ),
    (_unstable, "half of the text would have given another plan by mesa; calibrate on more text"),
    (
        _no_gain,
        "what mesa saves the worst domain over plain router mass does not hold on other text",
    ),
    (
        _disagree,
        "router mass and reap point at different experts, and no statistic tells which is right; "
        "reap held in either regime",
    ),
)


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{share:.0%}"


def _loss(seen: Evidence, method: str) -> str:
    return f"{seen.worst_domain_loss[method]:.1%} ({seen.worst_domain[method]})"
