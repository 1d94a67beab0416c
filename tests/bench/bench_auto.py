"""What method auto chooses on drawn models, each with one thing made wrong.

    python tests/bench/bench_auto.py [--models 20]

24 layers x 32 experts, 6 domains, a quarter of the experts removed. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dispersed import drawn

import moeprune

CASES: dict[str, dict[str, Any]] = {
    "over-dispersed, REAP follows mass": {},
    "REAP follows mass loosely (correlation 0.9)": {"norms_follow_mass": 0.9},
    "REAP follows mass a little (correlation 0.5)": {"norms_follow_mass": 0.5},
    "REAP has nothing to do with mass": {"norms_follow_mass": 0.0},
    "domains differ by noise only": {"own": 0.0, "noise": 0.02},
    "much noise: a tenth of the text": {"noise": 0.25},
    "peaked routing": {"entropy": 0.74},
    "one domain": {"domains": 1},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=20)
    models = parser.parse_args().models
    print("| the model | mesa | reap | why not mesa |\n|---|---|---|---|")
    for title, changed in CASES.items():
        plans = [
            moeprune.plan(drawn(seed, **changed), method="auto", ratio=0.25)
            for seed in range(models)
        ]
        chosen = Counter(plan.method for plan in plans)
        why = Counter(
            plan.reasons[2].removeprefix("chosen reap: ").split(",")[0].split(";")[0]
            for plan in plans
            if plan.method == "reap"
        )
        said = ", ".join(f"{text} ({count})" for text, count in why.most_common())
        print(f"| {title} | {chosen['mesa']} | {chosen['reap']} | {said} |")


if __name__ == "__main__":
    main()
