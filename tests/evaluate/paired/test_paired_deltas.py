"""Changes by task and group: the paper's tables 3 and 9 out of its table 2."""

import mesa_tables
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.errors import UsageError
from moeprune.evaluate.paired.deltas import AccuracyTable, characters, cluster_deltas


def test_table_3_is_table_2_less_the_baseline():
    table = mesa_tables.table()
    assert list(mesa_tables.TABLE_3) == list(table.variants)
    want_VT = np.array(list(mesa_tables.TABLE_3.values()))
    assert table.delta_VT == pytest.approx(want_VT, abs=1e-9)


def test_table_9_is_the_mean_of_table_3():
    table = mesa_tables.table()
    deltas = cluster_deltas(table, mesa_tables.TABLE_9)
    want = {
        "MESA": (-4.67, -1.68, "balanced"),
        "REAP": (-1.45, -3.48, "reasoning-preserving"),
        "EvoESAP": (-15.27, -0.51, "knowledge-preserving"),
        "RM-Uniform": (-17.81, -0.85, "knowledge-preserving"),
        "Random": (-26.83, -3.58, "losing both"),
    }
    words = characters(deltas)
    for row, name in enumerate(table.variants):
        reasoning, knowledge, word = want[name]
        # Half a unit of the last printed digit, and the rounding of table 3 itself.
        assert deltas["reasoning"][row] == pytest.approx(reasoning, abs=0.0051)
        assert deltas["knowledge"][row] == pytest.approx(knowledge, abs=0.0051)
        assert words[row] == word


def test_worst_task_of_each_variant():
    found = dict(zip(mesa_tables.ACCURACY, mesa_tables.table().worst(), strict=True))
    assert {name: task for name, (task, _) in found.items()} == {
        "MESA": "AIME25",
        "REAP": "GPQA",
        "EvoESAP": "GPQA",
        "RM-Uniform": "AIME25",
        "Random": "AIME25",
    }
    assert found["REAP"][1] == pytest.approx(-16.75)


def test_of_equal_losses_the_first_task_is_the_worst():
    table = AccuracyTable(
        variants=("v",), tasks=("a", "b"), baseline_T=[50, 60], accuracy_VT=[[49, 59]]
    )
    assert table.worst() == (("a", -1.0),)


@given(st.lists(st.tuples(st.floats(-40, 10), st.floats(-40, 10)), min_size=1, max_size=8))
def test_words_follow_the_rule(pairs):
    one, other = (np.array(column) for column in zip(*pairs, strict=True))
    half = [max(1.0, max(0.0, -x.min())) / 2 for x in (one, other)]
    for word, a, b in zip(characters({"A": one, "B": other}), one, other, strict=True):
        assert (word == "balanced") == (-a < half[0] and -b < half[1])
        assert (word == "A-preserving") == (-a < half[0] and -b >= half[1])
        assert (word == "B-preserving") == (-a >= half[0] and -b < half[1])
    swapped = characters({"A": other, "B": one})
    mirror = {"A-preserving": "B-preserving", "B-preserving": "A-preserving"}
    assert swapped == tuple(mirror.get(w, w) for w in characters({"A": one, "B": other}))


def test_half_of_the_largest_loss_is_large():
    assert characters({"A": np.array([-4.0, -2.0]), "B": np.array([0.0, 0.0])}) == (
        "B-preserving",
        "B-preserving",
    )


def test_small_losses_are_no_character():
    assert characters({"A": np.array([-0.4, 0.2]), "B": np.array([0.1, -0.3])}) == (
        "balanced",
        "balanced",
    )


def test_what_does_not_fit_is_refused_in_one_line():
    table = mesa_tables.table()
    with pytest.raises(UsageError, match="no task BBH in the table; it has AIME25"):
        cluster_deltas(table, {"A": ["BBH"], "B": ["MMLU"]})
    with pytest.raises(UsageError, match="in the groups A and B"):
        cluster_deltas(table, {"A": ["MMLU"], "B": ["GPQA", "MMLU"]})
    with pytest.raises(UsageError, match="at least one"):
        cluster_deltas(table, {"A": [], "B": ["MMLU"]})
    with pytest.raises(UsageError, match="between two groups"):
        characters({"A": np.zeros(2)})
    with pytest.raises(UsageError, match="different names"):
        AccuracyTable(variants=("v", "v"), tasks=("a",), baseline_T=[1], accuracy_VT=[[1], [1]])
    with pytest.raises(UsageError, match="do not fit"):
        AccuracyTable(variants=("v",), tasks=("a",), baseline_T=[1, 2], accuracy_VT=[[1, 2]])
    with pytest.raises(UsageError, match="NaN"):
        AccuracyTable(variants=("v",), tasks=("a",), baseline_T=[1], accuracy_VT=[[float("nan")]])
