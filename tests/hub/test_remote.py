"""A Hub in trouble, and what answers in its place: one line, no token, and no work lost in passing.

Through the real client, from a local server; the job is an export that streams.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakehub import SHA
from hubclient import call_client
from hubfiles import FileHub, experts_by_three, hub_of
from plans import plan_keeping
from tiny import tiny_checkpoint

TOKEN = "hf_ThisIsASecretThatNobodyMaySee0123456789"
ODD_TOKEN = "abc.secret-77"  # of a Hub that gives out tokens of another form


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    source = tiny_checkpoint("qwen3_moe", folder / "source", moe_intermediate_size=96)
    experts_by_three(source)
    plan_keeping(source, [(0, 1, 2, 6, 8, 9, 10, 11)] * 3).save(folder / "plan.json")
    return folder


@pytest.fixture
def hub(made: Path) -> Iterator[FileHub]:
    with hub_of(made / "source") as running:
        yield running


@pytest.fixture
def run(made: Path, hub: FileHub, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Export from the hub; checks what must hold of every failure."""

    def export(call: str = "export", *, token: str = TOKEN, **more: str) -> dict[str, Any]:
        out = tmp_path / "work" / "out"
        out.parent.mkdir(exist_ok=True)
        options: dict[str, Any] = {}
        if call == "export":
            options = {"plan": str(made / "plan.json"), "output": str(out), "stream": True}
        calls = [(call, ["org/name"], options)]
        home = tmp_path / "home"
        (outcome,), printed = call_client(hub.url, calls, home=home, HF_TOKEN=token, **more)
        if "text" in outcome:
            assert "\n" not in outcome["text"], outcome["text"]
            assert token not in printed + outcome["everything"]
            assert not list(out.parent.iterdir())
        return outcome

    return export


def shards(hub: FileHub) -> list[str]:
    return sorted(name for name in hub.files if name.startswith("model-"))


def fail(hub: FileHub, method: str, pattern: str, status: int, **headers: str) -> None:
    hub.fail = {(method, pattern): status}
    hub.fail_headers = {name.replace("_", "-"): value for name, value in headers.items()}


def quote(hub: FileHub) -> None:
    """A server that says the token back."""
    hub.fail_body = b'{"error": "bad %s"}' % ODD_TOKEN.encode()
    fail(hub, "GET", "/storage/*", 400, X_Error_Message=f"not {ODD_TOKEN}")


def no_weights(hub: FileHub) -> None:
    hub.files = {name: data for name, data in hub.files.items() if "safetensors" not in name}
    hub.files["pytorch_model.bin"] = b"\x80\x04."


def html(hub: FileHub) -> None:
    """A proxy's page with the status of a part."""
    hub.changed = lambda headers, body: ({}, b"<html>log in</html>")


def squeezed(hub: FileHub) -> None:
    hub.changed = lambda headers, body: ({**headers, "Content-Encoding": "gzip"}, body)


# what is wrong -> the words that say so
TROUBLE: dict[str, tuple[Callable[[FileHub], object], list[str]]] = {
    "a file outside": (
        lambda hub: hub.files.update({"../../evil.py": b"x"}),
        ["'../../evil.py'", "outside"],
    ),
    "an absolute file": (
        lambda hub: hub.files.update({"/tmp/evil.json": b"{}"}),
        ["'/tmp/evil.json'", "outside"],
    ),
    "no safetensors": (no_weights, ["only as pytorch_model.bin", "--revision refs/pr/N"]),
    "a small file is gone": (
        lambda hub: fail(hub, "*", "*/config.json", 404, X_Error_Code="EntryNotFound"),
        ["org/name lists a file", "does not find it", "later"],
    ),
    "no part of a file": (html, ["in the Hub's place", "model-00001", "HF_ENDPOINT"]),
    "parts in gzip": (squeezed, ["in the Hub's place", "model-00001"]),
}


@pytest.mark.parametrize("what", TROUBLE)
def test_trouble_is_told(what: str, hub: FileHub, run: Callable[..., dict[str, Any]]) -> None:
    spoil, words = TROUBLE[what]
    spoil(hub)
    outcome = run()
    for word in words:
        assert word in outcome["text"], outcome["text"]
    assert not hub.whole


def test_a_token_of_any_form_is_cut_out(hub: FileHub, run: Callable[..., dict[str, Any]]) -> None:
    quote(hub)
    text = run(token=ODD_TOKEN)["text"]
    assert "400" in text and "***" in text
    text = run(token="abc secret-77 é")["text"]
    assert "the token of the Hub" in text and "Copy it again" in text


def test_offline(hub: FileHub, run: Callable[..., dict[str, Any]]) -> None:
    text = run(HF_HUB_OFFLINE="1")["text"]
    assert "HF_HUB_OFFLINE" in text and "leave --stream out" in text
    assert not hub.requests


def test_a_busy_hub_is_asked_again(hub: FileHub, run: Callable[..., dict[str, Any]]) -> None:
    """At the first question, and when a weight file is on its way after others have come."""
    fail(hub, "GET", "/api/*", 429)
    threading.Timer(1.5, lambda: hub.fail.clear()).start()
    late = shards(hub)[4]
    seen: list[str] = []

    def busy(name: str) -> None:
        if hub.whole and not seen:
            seen.append(name)
            fail(hub, "GET", f"/storage/{late}", 503)
            threading.Timer(4, lambda: hub.fail.clear()).start()

    hub.during = busy
    outcome = run()
    assert "result" in outcome, outcome
    asked = [path for method, path in hub.requests if path == "/storage/" + late]
    assert seen and len(asked) > 2  # it failed at least once
    assert hub.whole == sorted(set(hub.whole))  # what had come was not asked for again


def test_a_repository_that_was_renamed(hub: FileHub, run: Callable[..., dict[str, Any]]) -> None:
    hub.moved = ("org/name", "org/new")
    assert "result" in run()
    assert "result" in run("inspect")
    assert any("org/new" in path for _, path in hub.requests)


def test_a_hub_that_leads_in_circles_is_left_at_once(
    hub: FileHub, run: Callable[..., dict[str, Any]]
) -> None:
    hub.moved = ("/storage/", "/storage/")
    assert "TooManyRedirects" in run()["text"]
    assert len([1 for _, path in hub.requests if path.startswith("/storage/")]) < 400


def test_a_commit_by_its_hash_and_a_branch_with_a_slash(
    made: Path, hub: FileHub, tmp_path: Path
) -> None:
    hub.branches.add("refs/pr/1")
    for number, revision in enumerate(("refs/pr/1", SHA)):
        options = {"plan": str(made / "plan.json"), "output": str(tmp_path / f"out{number}")}
        calls = [("export", ["org/name"], {**options, "stream": True, "revision": revision})]
        (outcome,), _ = call_client(hub.url, calls, home=tmp_path / f"home{number}")
        assert "result" in outcome, outcome
    assert hub.revisions == {SHA}
