"""export --stream through the real client, from a local Hub that counts what it sends."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakehub import SHA
from folding import made_up_stats
from hubclient import call_client, environment
from hubfiles import FileHub, experts_by_three, hub_of
from plans import plan_keeping
from tiny import tiny_checkpoint

from moeprune.cli.main import main

TOKEN = "hf_ThisIsASecretThatNobodyMaySee0123456789"
KEEP = (0, 1, 2, 6, 8, 9, 10, 11)  # 3 to 5 leave with their whole files
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """13 weight files: all that is no expert, then three experts of a layer in each."""
    folder = tmp_path_factory.mktemp("streamed") / "source"
    tiny_checkpoint("qwen3_moe", folder, moe_intermediate_size=768)
    experts_by_three(folder)
    (folder / "sub").mkdir()
    (folder / "sub" / "notes.txt").write_bytes(b"\r\n\xff")
    (folder / "consolidated.safetensors").write_bytes(b"the same again")  # left out
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# x\n")
    plan_keeping(folder, [KEEP] * 3).save(folder.parent / "plan.json")
    return folder


@pytest.fixture
def plan(source: Path) -> str:
    return str(source.parent / "plan.json")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the client keeps its cache."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def hub(source: Path) -> Iterator[FileHub]:
    with hub_of(source) as running:
        yield running


def job(plan: str, output: Path, **options: Any) -> tuple[str, list[Any], dict[str, Any]]:
    return "export", ["org/name"], {"plan": plan, "output": str(output), "stream": True, **options}


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def weights(source: Path) -> list[str]:
    return sorted(json.loads((source / INDEX).read_text())["weight_map"].values())


def unneeded(source: Path) -> set[str]:
    """Files whose every tensor is one of the experts 3 to 5."""
    files = json.loads((source / INDEX).read_text())["weight_map"]
    kept = {file for n, file in files.items() if not any(f".experts.{e}." in n for e in (3, 4, 5))}
    return set(files.values()) - kept


# Exports, and looks at the working folder whenever a file is opened: prints the most room that
# weight files of the source took at once, how many there were, and the reports of progress.
WATCHED = """
import json, sys
from pathlib import Path
from moeprune.stages.export import export

plan, output, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
peak, most, reports = 0, 0, []

def look(event, arguments):
    global peak, most
    if event == "open":
        work = Path(output + ".partial")
        whole = [path.stat().st_size for path in (work / "whole").glob("*.safetensors")]
        heads = [path.stat().st_blocks * 512 for path in (work / "source").glob("*.safetensors")]
        peak, most = max(peak, sum(whole) + sum(heads)), max(most, len(whole))

sys.addaudithook(look)
made = export("org/name", plan=plan, output=output, stream=True, **options,
              on_progress=lambda report: reports.append((report.done, report.total)))
assert str(made) == output
print(json.dumps([peak, most, reports]))
"""


@pytest.mark.parametrize("shard_size", [None, "1500kB", "300kB", "1GB"])
def test_the_bytes_of_a_plain_export_with_one_weight_file_on_the_disk(
    shard_size: str | None, hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    options = {} if shard_size is None else {"shard_size": shard_size}
    arguments = [plan, str(tmp_path / "out"), json.dumps(options)]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments],
        env=environment(hub.url, home=home, HF_TOKEN=TOKEN),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    peak, most, reports = json.loads(done.stdout)
    needed = sorted(set(weights(source)) - unneeded(source))
    assert len(needed) == 10
    assert hub.whole == needed  # each once, in order
    largest = max((source / name).stat().st_size for name in needed)
    heads = (128 << 10) * 13 + (1 << 18)
    assert most == 1 and largest < peak <= largest + heads
    asked = sum(last + 1 - first for _, first, last in hub.ranges)
    assert asked <= heads  # headers and routers
    assert hub.revisions == {SHA} and TOKEN not in done.stdout + done.stderr
    assert hub.storage_tokens == {None} and f"Bearer {TOKEN}" in hub.tokens
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert not list(home.rglob("*.safetensors"))  # the shared cache is left alone
    total = sum((source / name).stat().st_size for name in needed)
    total += sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert reports == sorted(reports) and reports[-1] == [total, total]
    plain = job(plan, tmp_path / "plain", stream=False, **options)
    (other,), _ = call_client(hub.url, [plain], home=home)
    assert other["result"] == str(tmp_path / "plain"), other
    assert hashes(tmp_path / "out") == hashes(tmp_path / "plain")
    record = json.loads((tmp_path / "out" / "moeprune.json").read_text())
    assert record["left_out"] == ["consolidated.safetensors"]
    assert record["source"]["name"] == "org/name"


def test_what_lies_in_the_cache_is_used_and_stays(
    hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    outcomes, _ = call_client(
        hub.url,
        [job(plan, tmp_path / "plain", stream=False), job(plan, tmp_path / "out")],
        home=home,
    )
    assert [outcome.get("text") for outcome in outcomes] == [None, None]
    assert sorted(hub.whole) == sorted({*weights(source), "consolidated.safetensors"})
    assert not hub.ranges
    assert hashes(tmp_path / "out") == hashes(tmp_path / "plain")
    cached = [path for path in home.rglob("*.safetensors") if path.is_file()]
    assert len(cached) == 14
    lost = next(path for path in cached if path.name == weights(source)[0])
    lost.resolve().unlink()  # as if it had been removed there
    lost.unlink()
    hub.whole.clear()
    (again,), _ = call_client(hub.url, [job(plan, tmp_path / "again")], home=home)
    assert "text" not in again, again
    assert hub.whole == [lost.name] and not lost.exists()
    assert hashes(tmp_path / "again") == hashes(tmp_path / "plain")


def test_a_connection_that_drops_is_taken_up_again(
    hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    first, second = weights(source)[0], weights(source)[-1]
    hub.cuts = {first: [5, 200_000], second: [70_000]}  # headers, routers; whole files
    (outcome,), _ = call_client(hub.url, [job(plan, tmp_path / "out")], home=home)
    assert "text" not in outcome, outcome
    assert hub.cuts == {first: [], second: []}
    hub.files.pop("consolidated.safetensors")
    call_client(hub.url, [job(plan, tmp_path / "plain", stream=False)], home=home)
    one, two = hashes(tmp_path / "out"), hashes(tmp_path / "plain")
    assert {n for n in one if one[n] != two[n]} == {"moeprune.json"}  # it says what was left out


def fail(hub: FileHub, pattern: str, status: int, **headers: str) -> None:
    hub.fail = {("*", pattern): status}
    hub.fail_headers = {name.replace("_", "-"): value for name, value in headers.items()}


def bad_length(hub: FileHub, name: str) -> None:
    hub.files[name] = (2**60).to_bytes(8, "little") + hub.files[name][8:]


def long_header(hub: FileHub, name: str) -> None:
    """It states a header of 90 MB in a file that states to be larger."""
    hub.files[name] = (90_000_000).to_bytes(8, "little") + hub.files[name][8:]


def huge(hub: FileHub, name: str) -> None:
    hub.stated[name] = 2**62


def longer(hub: FileHub, name: str) -> None:
    hub.files[name] += b"more"


def shorter_stated(hub: FileHub, name: str) -> None:
    hub.stated[name] = len(hub.files[name]) - 4


REFUSED: dict[str, tuple[Any, list[str]]] = {
    "length of 2^60": (bad_length, ["org/name/model-", "1152921504606846976", "corrupt"]),
    "long header": (long_header, ["org/name/model-", "90000000", "corrupt"]),
    "huge": (huge, ["model-"]),
    "longer than its header says": (longer, ["org/name/model-", "corrupt", "describes"]),
    "longer than stated": (shorter_stated, ["model-", "changed on the Hub"]),
    "404": (
        lambda hub, name: fail(hub, f"*/{name}", 404, X_Error_Code="EntryNotFound"),
        ["model-"],
    ),
    "gated": (
        lambda hub, name: fail(hub, f"*/{name}", 403, X_Error_Code="GatedRepo"),
        ["org/name is gated", "terms"],
    ),
    "private": (
        lambda hub, name: fail(hub, "/api/*", 401, X_Error_Code="RepoNotFound"),
        ["no model org/name", "hf auth login"],
    ),
    "not listed": (lambda hub, name: hub.files.pop(name), ["org/name/model-", "is missing"]),
    "no ranges": (lambda hub, name: setattr(hub, "no_ranges", True), ["whole", "name its folder"]),
    "another model": (
        lambda hub, name: hub.files.update(
            {weights_of(hub)[0]: other_routers(hub.files[weights_of(hub)[0]])}
        ),
        ["plan", "org/name"],
    ),
}


def weights_of(hub: FileHub) -> list[str]:
    return sorted(name for name in hub.files if name.startswith("model-"))


def other_routers(data: bytes) -> bytes:
    """The same file with other bytes in its first router."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    at = next(row for name, row in header.items() if name.endswith(".gate.weight"))["data_offsets"]
    start = 8 + length + at[0]
    return data[:start] + bytes(64) + data[start + 64 :]


@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_a_weight_file_is_downloaded(
    what: str, hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    spoil, words = REFUSED[what]
    spoil(hub, weights(source)[-1])
    (outcome,), printed = call_client(
        hub.url, [job(plan, tmp_path / "out")], home=home, HF_TOKEN=TOKEN
    )
    assert "text" in outcome, outcome
    for word in words:
        assert word in outcome["text"], outcome["text"]
    assert "\n" not in outcome["text"] and str(tmp_path) not in outcome["text"]
    assert TOKEN not in printed + outcome["everything"]
    assert not list(tmp_path.iterdir())
    if what != "no ranges":
        sent = sum(size for name, size in hub.sent.items() if name.endswith(".safetensors"))
        assert sent < 3_000_000 and not hub.whole


def test_a_file_that_changes_after_its_header_was_read(
    hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    """Another etag; or, from a server that lies about it, other bytes under the same one."""
    last = weights(source)[-1]
    whole = hub.files[last]
    for change in ("etag", "header", "cut"):
        hub.files[last] = whole
        hub.whole.clear()

        def swap(name: str, change: str = change) -> None:
            if name != last and hub.whole:  # the first weight file is on its way
                if change == "etag":
                    hub.files[last] = whole[:-1] + bytes([whole[-1] ^ 1])
                elif change == "header":
                    hub.files[last] = whole[:90] + b"#" + whole[91:]
                    hub.etags[last] = hashlib.sha256(whole).hexdigest()
                else:
                    hub.files[last] = whole[:-100]
                    hub.etags[last] = hashlib.sha256(whole).hexdigest()
                    hub.stated[last] = len(whole)

        hub.during = swap
        (outcome,), _ = call_client(hub.url, [job(plan, tmp_path / "out")], home=home)
        assert outcome.get("error") == "HubError", (change, outcome)
        assert "org/name" in outcome["text"] and "\n" not in outcome["text"]
        if change != "cut":
            assert f"{last} of org/name changed on the Hub" in outcome["text"]
        assert not list(tmp_path.iterdir())


def test_killed_while_a_weight_file_comes(
    hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    program = (
        "import sys; from moeprune.stages.export import export\n"
        "export('org/name', plan=sys.argv[1], output=sys.argv[2], stream=True)"
    )
    work = tmp_path / "work"
    work.mkdir()
    run = [sys.executable, "-c", program, plan, str(work / "out")]
    env = environment(hub.url, home=home)
    wanted = weights(source)[-2]
    reached = tmp_path / "reached"

    def hang(name: str) -> None:
        if name == wanted and hub.whole[-1:] == [wanted]:
            reached.touch()
            time.sleep(0.2)

    hub.during = hang
    for kill in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(run, env=env, stderr=subprocess.PIPE)
        while not reached.exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        process.send_signal(kill)
        started = time.monotonic()
        process.communicate()
        assert process.returncode != 0 and time.monotonic() - started < 5
        left = ["out.partial"] if kill == signal.SIGKILL else []
        assert [path.name for path in work.iterdir()] == left
        reached.unlink()
        hub.whole.clear()
    hub.during = lambda _: None
    subprocess.run(run, env=env, check=True)
    assert [path.name for path in work.iterdir()] == ["out"]


def test_a_preview_downloads_headers_only(
    hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    arguments = ["export", "org/name", "-o", str(tmp_path / "out"), "--plan", plan, "--stream"]
    env = environment(hub.url, home=home) | {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "moeprune", *arguments, *options]
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    preview = json.loads(run("--dry-run", "--json"))
    text = run("--dry-run")
    assert not hub.whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmp"]
    assert not list((tmp_path / "tmp").iterdir())
    needed = sorted(set(weights(source)) - unneeded(source))
    assert preview["downloads"] == {name: (source / name).stat().st_size for name in needed}
    largest = max(preview["downloads"].values())
    assert preview["bytes_needed"] == preview["bytes_to_write"] + largest
    assert "10 of 13 weight files to download" in text
    run()
    files = {
        path.relative_to(tmp_path / "out").as_posix(): path.stat().st_size
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert preview["files"] == files and hub.whole == needed


def test_the_disk_must_hold_the_result_and_one_file(
    hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    program = (
        "import shutil, sys; from types import SimpleNamespace as S\n"
        "from moeprune.cli.main import main\n"
        "free = int(sys.argv.pop())\n"
        "shutil.disk_usage = lambda _: S(free=free, total=10**12, used=0)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = ["export", "org/name", "-o", str(tmp_path / "out"), "--plan", plan, "--stream"]
    env = environment(hub.url, home=home)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-c", program, *command, *arguments]
        return subprocess.run(start, env=env, capture_output=True, text=True)

    preview = json.loads(run("--dry-run", "--json", "999").stdout)
    needed = preview["bytes_needed"]
    few = run(str(needed - 1))
    assert few.returncode == 2 and f"it needs {needed:,} bytes" in few.stderr
    assert few.stderr.count("\n") == 1 and not hub.whole
    assert "too little" in run("--dry-run", str(needed - 1)).stdout
    assert run(str(needed)).returncode == 0


def test_a_bad_plan_asks_nothing_of_the_hub(
    hub: FileHub, plan: str, tmp_path: Path, home: Path
) -> None:
    body = json.loads(Path(plan).read_text())
    body["layers"][0]["keep"] = body["layers"][0]["keep"][:-1]
    uneven = tmp_path / "uneven.json"
    uneven.write_text(json.dumps(body))
    (tmp_path / "there").mkdir()
    outcomes, _ = call_client(
        hub.url,
        [
            job(str(tmp_path / "none.json"), tmp_path / "out"),
            job(str(uneven), tmp_path / "out"),
            job(plan, tmp_path / "there"),
            job(plan, tmp_path / "no" / "out"),
            job(plan, tmp_path / "out", shard_size="big"),
        ],
        home=home,
    )
    errors = ["PlanError", "PlanError", "OutputError", "OutputError", "UsageError"]
    assert [outcome.get("error") for outcome in outcomes] == errors
    assert not hub.requests
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "uneven.json"]


def test_a_local_folder_does_not_stream(
    source: Path, plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--dry-run"]):
        arguments = ["export", str(source), "-o", str(tmp_path / "out"), "--plan", plan]
        assert main([*arguments, "--stream", *options]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "--stream is for models on the Hub" in error
    assert not list(tmp_path.iterdir())


def test_inspect_reads_headers_and_routers_only(
    hub: FileHub, source: Path, tmp_path: Path, home: Path
) -> None:
    from moeprune.stages.inspect import inspect

    env = environment(hub.url, home=home)
    command = [sys.executable, "-m", "moeprune", "inspect", "org/name", "--json"]

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env | more, capture_output=True, text=True)

    mine = inspect(source).to_json() | {"name": "org/name"}
    assert json.loads(run().stdout) == json.loads(json.dumps(mine))
    assert not hub.whole
    asked = sum(last + 1 - first for _, first, last in hub.ranges)
    assert asked < 3_000_000 < sum(len(hub.files[name]) for name in weights_of(hub)) / 3
    assert run(HF_HUB_OFFLINE="1").returncode == 2
    call_client(hub.url, [("resolve", ["org/name"], {})], home=home)
    for more in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        done = run(**more)  # the cache serves, as for every command
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == json.loads(json.dumps(mine))


def test_stacks_in_a_single_weight_file(tmp_path: Path, home: Path) -> None:
    source = tiny_checkpoint("gpt_oss", tmp_path / "source")
    shutil.copy(source / "config.json", source / "größe.json")
    plan = tmp_path / "plan.json"
    plan_keeping(source, [range(9)] * 2).save(plan)
    with hub_of(source) as hub:
        calls = [
            job(str(plan), tmp_path / "out", revision="main"),
            job(str(plan), tmp_path / "plain", revision="main", stream=False),
        ]
        outcomes, _ = call_client(hub.url, calls, home=home)
        assert ["result" in outcome for outcome in outcomes] == [True, True], outcomes
    assert hashes(tmp_path / "out") == hashes(tmp_path / "plain")
    assert (tmp_path / "out" / "größe.json").exists()


def test_all_experts_with_other_k1_and_k2(
    hub: FileHub, source: Path, tmp_path: Path, home: Path
) -> None:
    words = {"plan": None, "k1": 2, "k2": 5}
    jobs = [
        ("export", ["org/name"], {"output": str(tmp_path / name), "stream": stream, **words})
        for name, stream in (("out", True), ("plain", False))
    ]
    outcomes, _ = call_client(hub.url, jobs, home=home)
    assert [outcome.get("text") for outcome in outcomes] == [None, None]
    assert hashes(tmp_path / "out") == hashes(tmp_path / "plain")
    for name in weights(source):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes(), name


def test_a_folded_gain_streams_like_the_rest(
    hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    """Last maps multiplied on the way: the bytes of an export from the folder."""
    made_up_stats(source).save(tmp_path / "stats.safetensors")
    options = {"k1": 2, "k2": 5, "fold_gain": str(tmp_path / "stats.safetensors")}
    options["shard_size"] = "1500kB"
    streamed = job(plan, tmp_path / "out", **options)
    local = ("export", [str(source)], {**streamed[2], "output": str(tmp_path / "plain")})
    local[2]["stream"] = False
    outcomes, _ = call_client(hub.url, [streamed, local], home=home)
    assert all("error" not in outcome for outcome in outcomes), outcomes
    mine, theirs = hashes(tmp_path / "out"), hashes(tmp_path / "plain")
    differing = {name for name in mine if mine[name] != theirs[name]}
    assert differing <= {"moeprune.json", "README.md"}  # they state the name of the source
    assert not list((tmp_path / "out.partial").glob("*"))


def test_weights_are_quantised_while_they_come(
    hub: FileHub, source: Path, plan: str, tmp_path: Path, home: Path
) -> None:
    calls = [job(plan, tmp_path / "out", quantize="int4", shard_size="300kB")]
    calls.append(job(plan, tmp_path / "plain", quantize="int4", shard_size="300kB", stream=False))
    outcomes, _ = call_client(hub.url, calls, home=home)
    assert [outcome.get("text") for outcome in outcomes] == [None, None]
    assert hashes(tmp_path / "out") == hashes(tmp_path / "plain")
    record = json.loads((tmp_path / "out" / "moeprune.json").read_text())
    part = record["quantisation"]["parts"]["expert"]
    assert part["parameters"] == part["quantised"] == 3 * 8 * 3 * 768 * 32
