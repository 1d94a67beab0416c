"""plan with constraints, plan show and plan diff, as typed."""

import json
import re
from pathlib import Path

import click
import pytest
import synthetic

from moeprune.cli.default_command import DefaultCommand
from moeprune.cli.main import cli, main
from moeprune.core.methods import METHODS

MODEL = synthetic.facts([8, 8, 8], layer_ids=[1, 2, 5])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with stats and two plans in it."""
    monkeypatch.chdir(tmp_path)
    synthetic.stats(MODEL, tokens_F=(12, 9, 10, 11), seed=2).save(tmp_path / "stats.safetensors")
    (tmp_path / "must.json").write_text('{"1": [0, 1, 2, 3, 4, 5]}')
    return tmp_path


@pytest.fixture
def says(folder, capsys):
    """Run ``moeprune plan …``: exit code, stdout, stderr."""

    def run(*args):
        code = main(["plan", *args])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def planned(says, name, *args):
    code, out, err = says("stats.safetensors", "-o", name, "--method", "reap", *args)
    assert (code, err) == (0, "")
    return out


def test_constraints_are_stated(says):
    out = planned(says, "p.json", "--ratio", "0.25", "--keep-layers", "1", "--layer-keep", "-1=4")
    assert "layer 1 is never pruned; layer 5 keeps 4; the other layers: --ratio 0.25" in out
    assert "warning: layers keep different numbers of experts: export with --per-layer" in out
    out = planned(says, "p.json", "--ratio", "0.25", "--must-keep", "must.json")
    assert "must stay: 6 experts (layer 1: 0-5)" in out
    out = planned(says, "p.json", "--ratio", "0.25", "--protect-super-experts")
    assert "super-experts" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ratio", "0.25", "--keep-layers", "0"], ["--keep-layers", "1-2, 5"]),
        (["--ratio", "0.25", "--keep-layers", "1,x"], ["--keep-layers '1,x'", "'x'"]),
        (["--ratio", "0.25", "--layer-keep", "5"], ["--layer-keep '5'", "3=48"]),
        (["--ratio", "0.25", "--layer-keep", "5=4", "--layer-keep", "5=6"], ["layer 5 has a"]),
        (["--ratio", "0.5", "--must-keep", "must.json"], ["layer 1 must keep 6", "--ratio 0.37"]),
        (["--ratio", "0.5", "--must-keep", "no.json"], ["--must-keep", "no.json"]),
        (["--ratio", "0.5,0.25"], ["-o p.json is one file", "{ratio}"]),
        (["--ratio", "0.5,,0.25"], ["--ratio '0.5,,0.25'"]),
        (["--ratio", "0.5,0.50"], ["twice"]),
        (["--ratio", "0.5", "--max-bytes", "11kB"], ["give one of the three"]),
        (["--max-bytes", "1"], ["cannot be met", "Use --max-bytes 10600 or more"]),
        (["--max-bytes", "1GB"], ["fits already"]),
        (["--keep-layers", "1"], ["no size is asked for", "--max-bytes"]),
    ],
)
def test_mistakes_are_one_line(args, words, says, folder):
    before = sorted(folder.iterdir())
    code, out, err = says("stats.safetensors", "-o", "p.json", "--method", "reap", *args)
    assert (code, out) == (2, "")
    assert err.startswith("moeprune: ") and err.count("\n") == 1, err
    for word in words:
        assert word in err
    assert sorted(folder.iterdir()) == before


def test_several_ratios(says, folder):
    out = planned(says, "p-{ratio}.json", "--ratio", "0.125,0.5")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["ratio", "0.125", "0.5"]
    assert out.splitlines()[-2:] == ["written to p-0.125.json", "written to p-0.5.json"]
    assert (folder / "p-0.125.json").is_file() and (folder / "p-0.5.json").is_file()
    code, out, _ = says(
        "stats.safetensors", "-o", "plans", "--method", "reap", "--ratio", "0.125,0.5", "--json"
    )
    body = json.loads(out)
    assert code == 0
    assert [entry["plan"]["ratio"] for entry in body] == [0.125, 0.5]
    for entry in body:
        assert json.loads((folder / entry["output"]).read_text()) == entry["plan"]


def test_show_prints_what_plan_printed(says):
    made = planned(says, "p.json", "--ratio", "0.25", "--keep-layers", "1")
    code, shown, _ = says("show", "p.json")
    assert code == 0
    assert shown.splitlines()[:-1] == made.splitlines()[:-1]
    assert shown.splitlines()[-1].startswith("org/model, fingerprint 5eed")
    code, out, _ = says("show", "p.json", "--json")
    assert json.loads(out)["edited"] is False


def change(folder, edit):
    body = json.loads((folder / "p.json").read_text())
    edit(body)
    (folder / "p.json").write_text(json.dumps(body))


def swapped(body):
    keep = body["layers"][1]["keep"]
    gone = sorted(set(range(8)) - set(keep))
    body["layers"][1]["keep"] = sorted([*keep[1:], gone[0]])


def test_show_and_diff_of_an_edited_plan_state_no_stale_loss(says, folder):
    planned(says, "p.json", "--ratio", "0.25")
    planned(says, "q.json", "--ratio", "0.25")
    change(folder, swapped)
    code, shown, _ = says("show", "p.json")
    assert code == 0
    figures = ("worst domain", "loses", "  ", "stability", "size")
    assert not any(line.startswith(figures) for line in shown.splitlines())
    assert "edited by hand" in shown
    code, out, _ = says("show", "p.json", "--json")
    body = json.loads(out)
    assert body["edited"] is True and body["domain_loss"] == {} and body["worst_domain"] is None
    code, out, _ = says("diff", "p.json", "q.json")
    assert code == 0
    assert "edited by hand, so its losses are not known" in out and "not known" in out
    assert "2 layers are the same in both" in out


@pytest.mark.parametrize(
    "edit",
    [
        lambda body: body["routing"].update(entropy_ratio="much"),
        lambda body: body["size"].update(bytes_before="0"),
        lambda body: body["size"].update(bytes_before=0),
        lambda body: body["stability"].update(jaccard="all"),
        lambda body: body.update(options={"must_keep": {"1": []}, "keep": {}, "layer_keep": {}}),
        lambda body: body["size"].pop("bytes_after"),
    ],
)
def test_show_of_nonsense_is_one_line_or_text(edit, says, folder):
    planned(says, "p.json", "--ratio", "0.25")
    change(folder, edit)
    code, out, err = says("show", "p.json")
    if code:
        assert (code, out) == (2, "") and err.count("\n") == 1 and "p.json" in err
    else:
        assert err == "" and out


def test_diff(says, folder):
    planned(says, "p.json", "--ratio", "0.25")
    planned(says, "q.json", "--ratio", "0.5", "--keep-layers", "1")
    code, out, _ = says("diff", "p.json", "q.json")
    assert code == 0
    assert out.startswith("A: p.json: reap (reap, uniform) keeps 18 of 24 experts\nB: q.json")
    code, out, _ = says("diff", "p.json", "q.json", "--json")
    body = json.loads(out)
    assert body["layers"][0]["kept"] == {"a": 6, "b": 8}
    assert len(body["layers"][0]["only_b_keeps"]) == 2
    code, out, _ = says("diff", "p.json", "p.json")
    assert "they agree on 100% of what leaves" in out and "all layers are the same" in out


def test_diff_of_other_models_is_refused(says, folder):
    planned(says, "p.json", "--ratio", "0.25")
    other = json.loads((folder / "p.json").read_text())
    other["model"]["fingerprint"] = "0b" * 32
    (folder / "q.json").write_text(json.dumps(other))
    code, out, err = says("diff", "p.json", "q.json")
    assert (code, out) == (2, "")
    assert "5eed5eed5eed" in err and "0b0b0b0b0b0b" in err and err.count("\n") == 1


def test_help_shows_options_and_other_commands(says):
    code, out, _ = says("--help")
    assert code == 0
    for word in ("--keep-layers", "--max-bytes", "{ratio}", "plan show", "plan diff", "--json"):
        assert word in out
    for name in ("show", "diff"):
        code, out, _ = says(name, "--help")
        assert code == 0 and out.startswith(f"Usage: moeprune plan {name} ")
    code, out, err = says("show")
    assert (code, out) == (2, "") and "'moeprune plan show --help'" in err


def test_stats_in_a_file_called_show(says, folder):
    (folder / "stats.safetensors").rename(folder / "show")
    code, out, _ = says("./show", "-o", "p.json", "--ratio", "0.25")
    assert code == 0 and "written to p.json" in out


def test_a_mistyped_command_is_answered_with_the_nearest(says):
    code, out, err = says("shwo", "p.json")
    assert (code, out) == (2, "")
    assert err == "moeprune: plan shwo: no such file. Did you mean 'plan show'?\n"


def test_the_help_names_every_method_and_every_option_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its headings are written by hand: an option that one of them misspells would be lost."""
    command = cli.get_command(None, "plan")  # type: ignore[arg-type]
    assert isinstance(command, DefaultCommand)
    names = [parameter.name for parameter in command.params]
    listed = [name for heading in command.sections.values() for name in heading]
    assert len(listed) == len(set(listed)) and set(listed) < set(names)
    assert main(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            shown = rf"^  (?:-\w, )?{parameter.opts[-1]}\b(?!-)"
            assert len(re.findall(shown, text, re.M)) == 1, parameter.opts
    for name in METHODS:
        assert re.search(rf"^  {name}  ", text, re.M)


def test_a_domain_that_weighs_nothing_is_marked(says):
    out = planned(says, "plan.json", "--ratio", "0.25", "--domain-weight", "prose=0")
    lines = [line.split("  ") for line in out.splitlines()]
    marked = [line for line in lines if "prose (weighs 0)" in line]
    assert len(marked) == 1
    assert "(weighs 0)" not in planned(says, "plan.json", "--ratio", "0.25")
    shown = says("show", "plan.json")[1]
    assert "worst domain" in shown and "(weighs 0)" not in shown


def test_several_ratios_of_auto_say_what_was_chosen_and_why(says):
    args = ("stats.safetensors", "--method", "auto", "--ratio", "0.25,0.5")
    code, out, _ = says(*args, "-o", "p-{ratio}.json")
    assert code == 0 and out.startswith("auto chose ")
    for ratio in ("0.25", "0.5"):
        body = json.loads(Path(f"p-{ratio}.json").read_text())
        line = next(line for line in out.split("\n") if line.endswith(body["reasons"][-1]))
        assert line.startswith("why at ") and ratio in line
