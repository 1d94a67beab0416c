"""Files that name experts to keep: what they may say, and one line for what they may not."""

import json
from dataclasses import replace

import pytest
from synthetic import facts

from moeprune.core.must_keep import must_keep_rows
from moeprune.errors import UsageError

MODEL = facts([8, 6, 8], layer_ids=[1, 2, 5])
SETS = replace(facts([8] * 4, layer_ids=[0, 0, 1, 1]), sets=("", "attention") * 2)


@pytest.mark.parametrize(
    ("model", "asked", "rows"),
    [
        (MODEL, {"1": [3, 0], "5": [7]}, ((0, 3), (), (7,))),
        (MODEL, {1: [3, 3], "-1": [2]}, ((3,), (), (2,))),
        (MODEL, {"layer 2": [5], "1": []}, ((), (5,), ())),
        (SETS, {"0": [1], "0 (attention)": [2], "-1 (attention)": [3]}, ((1,), (2,), (), (3,))),
    ],
)
def test_rows(model, asked, rows, tmp_path):
    assert must_keep_rows(asked, model) == rows
    path = tmp_path / "keep.json"
    path.write_text(json.dumps(asked))
    assert must_keep_rows(path, model) == must_keep_rows(str(path), model) == rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[3]", "is no JSON object; it should be like"),
        ("{", "is a JSON file cut short or edited, not one JSON object"),
        ("{}", "names no expert"),
        ('{"1": []}', "names no expert"),
        ('{"3": [0]}', "has no MoE layer '3'; there are 1-2, 5"),
        ('{"all": [0]}', "has no MoE layer 'all'"),
        ('{"1 (attention)": [0]}', "has no MoE layer '1 (attention)'"),
        ('{"2": [6]}', "layer 2 has no expert 6; its experts are 0 to 5"),
        ('{"2": [-1]}', "layer 2 has no expert -1"),
        ('{"2": [true]}', "layer 2 has no expert True"),
        ('{"2": ["0"]}', "layer 2 has no expert '0'"),
        ('{"2": 3}', "layer 2 has 3; give a list"),
        ('{"2": [0], "2": [1]}', "the key '2' occurs twice"),
    ],
)
def test_refusals(text, says, tmp_path):
    path = tmp_path / "keep.json"
    path.write_text(text)
    with pytest.raises(UsageError) as refusal:
        must_keep_rows(path, MODEL)
    assert says in str(refusal.value) and "keep.json" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"none\.json does not exist"):
        must_keep_rows(tmp_path / "none.json", MODEL)


def test_an_unknown_set_names_those_there_are():
    with pytest.raises(UsageError, match=r'as in "0 \(attention\)"'):
        must_keep_rows({"0 (mlp)": [1]}, SETS)
