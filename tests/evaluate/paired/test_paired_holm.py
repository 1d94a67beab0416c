"""Holm's adjustment against statsmodels and its definition by closed testing."""

import gc
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from statsmodels.stats.multitest import multipletests

from moeprune.errors import UsageError
from moeprune.evaluate.paired.holm import holm


@pytest.fixture(scope="module", autouse=True)
def statsmodels_collects_no_garbage():
    """``multipletests`` collects it in each call, which takes longer than all else here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda: 0)
        yield


P_VALUES = arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1))


@given(P_VALUES)
def test_as_statsmodels_does(p_M):
    assert holm(p_M) == pytest.approx(multipletests(p_M, method="holm")[1], abs=1e-15)


@given(P_VALUES)
def test_no_p_falls_and_order_is_kept(p_M):
    adjusted_M = holm(p_M)
    assert np.all((p_M <= adjusted_M) & (adjusted_M <= 1))
    assert np.all(adjusted_M <= np.minimum(1, len(p_M) * p_M))
    order_M = np.argsort(p_M, kind="stable")
    assert np.all(np.diff(adjusted_M[order_M]) >= 0)


@given(arrays(np.float64, st.integers(1, 5), elements=st.floats(0, 1)))
def test_it_is_closed_testing_with_bonferroni(p_M):
    size = len(p_M)
    sets = [s for k in range(1, size + 1) for s in itertools.combinations(range(size), k)]
    want = [max(min(1, len(s) * min(p_M[list(s)])) for s in sets if i in s) for i in range(size)]
    assert holm(p_M) == pytest.approx(want, abs=1e-15)


def test_one_none_and_ties():
    assert holm([0.04]) == [0.04]
    assert holm([]).shape == (0,)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.02, 0.02]) == pytest.approx([0.04, 0.04])


def test_what_is_no_probability_is_refused():
    for wrong in ([0.5, 1.5], [-0.1], [float("nan"), 0.5], [[0.5]]):
        with pytest.raises(UsageError, match="p-values"):
            holm(wrong)
