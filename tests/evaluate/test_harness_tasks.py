"""Tasks of lm-eval that are not there, not allowed or broken: one line that names the way out."""

from __future__ import annotations

import importlib.metadata
import random
import re
from pathlib import Path
from typing import Any

import pytest

from moeprune.errors import UsageError
from moeprune.evaluate.harness.ask import check_askable
from moeprune.evaluate.harness.parts import read_harness
from moeprune.evaluate.harness.settings import HarnessSettings

_YAML = """
task: {name}
{more}
dataset_path: {path}
dataset_kwargs: {kwargs}
output_type: {kind}
test_split: {split}
doc_to_text: "{text}"
doc_to_choice: ["a", "b"]
doc_to_target: 0
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def write(folder: Path, name: str, **changed: str) -> Path:
    rows = folder / f"{name}.jsonl"
    rows.write_text(changed.pop("rows", '{"q": "x"}\n'))
    values = {
        "more": "",
        "path": "json",
        "kwargs": f"{{data_files: {{test: {rows}}}}}",
        "kind": "multiple_choice",
        "split": "test",
        "text": "{{q}}",
    }
    (folder / f"{name}.yaml").write_text(_YAML.format(name=name, **{**values, **changed}))
    return folder


def refused(folder: Path, *names: str) -> str:
    with pytest.raises(UsageError) as caught:
        read_harness(names, HarnessSettings(), include=[folder])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tag_is_a_task_whose_domains_carry_it(tmp_path: Path) -> None:
    write(tmp_path, "second", more="tag: both")
    write(tmp_path, "first", more="tag: both")
    parts = read_harness(["both"], HarnessSettings(), include=[tmp_path])
    assert [(part.task, part.name) for part in parts] == [
        ("lm_eval:both", "first"),
        ("lm_eval:both", "second"),
    ]
    assert "twice, by 'both' and by 'first'" in refused(tmp_path, "both", "lm_eval:first")


@pytest.mark.parametrize("name", ["lm_eval:mmul"])
def test_an_unknown_name_is_answered_with_near_ones(tmp_path: Path, name: str) -> None:
    write(tmp_path, "mmlx")
    said = refused(tmp_path, name)
    assert "no task, group or tag 'mmul'" in said
    assert "'mmlu'" in said  # of lm-eval's own thousands
    assert "'mmlx'" in said
    assert len(said) < 250


def test_no_lm_eval_or_an_old_one_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(UsageError, match=r'not installed: pip install "moeprune\[eval\]"'):
        read_harness(["mmlu"], HarnessSettings())
    for old in ("0.4.9", "0.4.9.2", "0.3"):
        monkeypatch.setattr(importlib.metadata, "version", lambda _, old=old: old)
        with pytest.raises(UsageError, match=rf"0\.4\.13 or later, and {old} is installed"):
            read_harness(["mmlu"], HarnessSettings())


_SHUFFLES = """
import random
import datasets


def shuffled(rows):
    found = [dict(row, q="".join(random.sample(row["q"], len(row["q"])))) for row in rows]
    return datasets.Dataset.from_list(found)
"""


def test_tasks_that_shuffle_are_the_same_whenever_they_are_read(tmp_path: Path) -> None:
    """GPQA shuffles its choices while it is read; nobody else's draws may decide how."""
    (tmp_path / "own.py").write_text(_SHUFFLES)
    write(tmp_path, "other")
    write(
        tmp_path,
        "gpqa",
        more="process_docs: !function own.shuffled",
        rows='{"q": "abcdefghijklmnop"}\n{"q": "qrstuvwxyz"}\n',
    )
    found = set()
    for seed, names in ((1, ["gpqa"]), (2, ["gpqa"]), (3, ["other", "gpqa"])):
        random.seed(seed)
        part = read_harness(names, HarnessSettings(), include=[tmp_path])[-1]
        found.add(part.sha256)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"more": "unsafe_code: true"}, "runs the programs that the model writes"),
        ({"kwargs": "{trust_remote_code: true}"}, "runs code of its own"),
    ],
)
@pytest.mark.parametrize("asked", ["risky", "holds_it"])
def test_code_runs_only_where_it_is_trusted(
    tmp_path: Path, changed: dict[str, str], said: str, asked: str
) -> None:
    write(tmp_path, "risky", **changed)
    (tmp_path / "group.yaml").write_text("group: holds_it\ntask: [risky]\n")
    assert said in refused(tmp_path, asked)
    assert "--trust-remote-code" in refused(tmp_path, asked)


def test_trusted_code_is_read(tmp_path: Path) -> None:
    write(tmp_path, "risky", more="unsafe_code: true")
    (part,) = read_harness(["risky"], HarnessSettings(), include=[tmp_path], trust_remote_code=True)
    assert part.name == "risky"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"path": "nobody/nothing", "kwargs": "{}"}, "OfflineModeIsEnabled"),
        ({"kwargs": "{data_files: {test: /nowhere/t.jsonl}}"}, "/nowhere/t.jsonl"),
        ({"rows": ""}, "cannot be read"),
        ({"rows": "{nope\n"}, "cannot be read"),
        ({"text": "{{nope}}"}, "'nope' is undefined"),
        ({"split": "dev"}, "'dev'"),
        ({"more": "nope: 1"}, "nope"),
        ({"kind": "choosing"}, "choosing"),
        ({"more": "filter_list: [{name: x, filter: [{function: nope}]}]"}, "nope"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    write(tmp_path, "broken", **changed)
    message = refused(tmp_path, "broken")
    assert "task 'broken' of lm-eval cannot be read" in message
    assert said in message
    assert "Hugging Face Hub" in message


def test_broken_yaml_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("task: [unclosed\n")
    assert "bad.yaml is no task of lm-eval" in refused(tmp_path, "x")
    message = refused(tmp_path / "bad.yaml", "x")
    assert f"is not a folder of YAML tasks. Name the folder it is in: {tmp_path}." in message


def test_functions_beside_a_yaml_are_fine(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def text(doc):\n    return 'Q ' + doc['q']\n")
    write(tmp_path, "coded", text='"\ndescription: ""\ndoc_to_text: !function own.text\nz: "')
    yaml = tmp_path / "coded.yaml"
    yaml.write_text(yaml.read_text().replace('doc_to_text: ""\n', "").replace('z: ""\n', ""))
    (part,) = read_harness(["coded"], HarnessSettings(), include=[tmp_path])
    assert part.built.doc_to_text({"q": "x"}) == "Q x"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"limit": 0}, "limit 0"),
        ({"shots": -1}, "shots -1"),
        ({"seed": -1}, "seed -1"),
        ({"thinking": True}, "where thinking ends"),
    ],
)
def test_settings_check_themselves(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        HarnessSettings(**settings)


class Template:
    """A tokenizer as far as its chat template is asked for."""

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def apply_chat_template(self, chat: list[dict[str, str]], **told: Any) -> str:
        from jinja2 import Template as Jinja

        return Jinja(told.pop("chat_template")).render(messages=chat, **told)


_PLAIN = "{{ messages[0].content }}"
_ALWAYS = _PLAIN + "<think>\n"
_THINKS = _PLAIN + "{% if not enable_thinking %}<think></think>{% endif %}"


@pytest.mark.parametrize(
    ("template", "settings", "told"),
    [
        (None, {}, {}),
        (None, {"chat_template": False}, {}),
        (_PLAIN, {"chat_template": False}, {}),
        (_PLAIN, {"chat_template": True}, {}),
        (_THINKS, {"chat_template": False}, {}),
        (_THINKS, {"chat_template": True, "thinking": False}, {"enable_thinking": False}),
        (None, {"chat_template": True}, "no chat template"),
        (None, {"thinking": True, "think_end": "</think>"}, "'plain' of lm-eval compares"),
        (_PLAIN, {}, "--chat-template on|off"),
        (_PLAIN, {"chat_template": True, "thinking": False}, "no switch for thinking"),
        (_THINKS, {"chat_template": True}, "--thinking on|off"),
        (_ALWAYS, {"chat_template": True}, "always lets the model think"),
        (_ALWAYS, {"chat_template": True, "thinking": False}, "always lets the model think"),
        (_ALWAYS, {"chat_template": False}, {}),
    ],
)
def test_template_and_thinking_are_stated_where_there_is_a_choice(
    tmp_path: Path, template: str | None, settings: dict[str, Any], told: dict[str, bool] | str
) -> None:
    parts = read_harness(["plain"], HarnessSettings(), include=[write(tmp_path, "plain")])
    if isinstance(told, dict):
        assert check_askable(parts, HarnessSettings(**settings), Template(template)) == told
    else:
        with pytest.raises(UsageError, match=re.escape(told)):
            check_askable(parts, HarnessSettings(**settings), Template(template))


def test_a_template_that_always_thinks_is_told_nothing(tmp_path: Path) -> None:
    written = write(tmp_path, "free", kind="generate_until")
    parts = read_harness(["free"], HarnessSettings(), include=[written])
    with pytest.raises(UsageError, match="256 tokens, and the model has 256 positions"):
        check_askable(parts, HarnessSettings(), Template(None), length=256)
    settings = HarnessSettings(chat_template=True, thinking=True, think_end="</think>")
    assert check_askable(parts, settings, Template(_ALWAYS)) == {}
