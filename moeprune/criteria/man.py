"""MAN: mean activation norm over the tokens an expert received (arXiv 2606.15716).

S_e = Σ_{x routed to e} ‖f_e(x)‖₂ / |{x routed to e}|. The same number as `ean`, the
baseline's name in the REAP literature: plans can be made in the words of either.
"""

from __future__ import annotations

from moeprune.criteria.ean import NEEDS, OPTIONS, score

__all__ = ["NEEDS", "OPTIONS", "score"]
