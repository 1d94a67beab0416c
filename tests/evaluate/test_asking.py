"""Answers depend on the question alone: not on batches, order, processes, or what was kept."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from moeprune.core.sample import Sample
from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.evaluate.asking import ask, num_batches, requests_of, writes
from moeprune.evaluate.batching import Room, batches
from moeprune.evaluate.corpora import corpus_task
from moeprune.evaluate.encoding import Encoder
from moeprune.evaluate.requests import Request
from moeprune.evaluate.tasks.prompts import context_texts, continuation_texts
from moeprune.observe.load import load_causal_lm, load_tokenizer
from moeprune.observe.writing import writer
from moeprune.packaged import calibration_folder

Live = tuple[Any, Any]


@pytest.fixture(scope="module")
def demo() -> Live:
    path = calibration_folder() / "demo" / "model"
    return load_causal_lm(path, dtype="float32"), load_tokenizer(path)


def live_tiny(tiny: Any, family: str) -> Live:
    return load_causal_lm(tiny(family)), load_tokenizer(tiny(family))


def questions(number: int = 20) -> tuple[Question, ...]:
    choices = ("7", "a longer choice", "né 数", "12")
    return tuple(
        Question(
            id=f"q{at}",
            domain=("x", "y")[at % 2],
            text="word " * (at * 7 % 11) + f"What is {at} + 3?",
            choices=choices,
            right=at % 4,
            answers=(str(at + 3),),
        )
        for at in range(number)
    )


def task_of(kind: str, **protocol: Any) -> Task:
    if kind == "perplexity":
        texts = ["ab c " * at for at in range(1, 12)]
        return corpus_task("t", texts, length=protocol.pop("length", 9))
    told = {"shots": 2, "max_new_tokens": 10, "stop": (".",), "extract": "last-number"}
    made = Protocol(kind=kind, **{**told, **protocol})
    found = questions()
    return Task(name="t", protocol=made, questions=found[2:], shots=found[: made.shots])


def asked(live: Live, task: Task, *, seeds: Sequence[int] | None = None, **how: Any) -> Any:
    model, tokenizer = live
    encoder = Encoder(tokenizer, max_length=512)
    requests = requests_of(task, encoder=encoder, tokenizer=tokenizer, seeds=seeds)
    write = writer(model, tokenizer)
    return ask(model, task, requests, tokenizer=tokenizer, write=write, **how)


def check_same(mine: Sequence[Sample], theirs: Sequence[Sample]) -> None:
    """Equal but for the last bits of numbers."""
    assert len(mine) == len(theirs) > 0
    for ours, other in zip(mine, theirs, strict=True):
        assert replace(ours, details={}) == replace(other, details={})
        assert ours.details.keys() == other.details.keys()
        for name, value in ours.details.items():
            if isinstance(value, float | list):
                np.testing.assert_allclose(value, other.details[name], rtol=0, atol=5e-5)
            else:
                assert value == other.details[name], (ours.id, name)


ASKED = [
    ("letters", {}),
    ("cloze", {}),
    ("perplexity", {}),
    ("generate", {}),
    ("generate", {"temperature": 1.0}),
    ("degeneration", {"max_new_tokens": 16}),
]


@pytest.mark.parametrize(("kind", "protocol"), ASKED)
@pytest.mark.parametrize("family", ["demo", "qwen3_moe"])
def test_batches_and_order_do_not_matter(
    kind: str, protocol: dict[str, Any], family: str, tiny: Any, demo: Live
) -> None:
    live = demo if family == "demo" else live_tiny(tiny, family)
    task = task_of(kind, **protocol)
    if writes(task):  # a pass a token: ten questions of ten lengths
        task = replace(task, questions=task.questions[:10])
    want = asked(live, task, batch_size=1)
    sizes = (4, None) if writes(task) else (3, 64, None, Room(tokens=100))
    for batch_size in sizes:
        check_same(asked(live, task, batch_size=batch_size), want)
    order = np.random.default_rng(0).permutation(len(task.questions))
    shuffled = replace(task, questions=tuple(task.questions[at] for at in order))
    found = {sample.key: sample for sample in asked(live, shuffled, batch_size=5)}
    check_same([found[sample.key] for sample in want], want)


@pytest.mark.parametrize("kind", ["cloze", "generate"])
def test_one_at_a_time_nothing_matters_in_half_precision_either(kind: str, demo: Live) -> None:
    path = calibration_folder() / "demo" / "model"
    live, task = (load_causal_lm(path, dtype="bfloat16"), demo[1]), task_of(kind)
    task = replace(task, questions=task.questions[:7])
    want = asked(live, task, batch_size=1)
    turned = replace(task, questions=task.questions[::-1])
    assert asked(live, turned, batch_size=1)[::-1] == want


@torch.inference_mode()
def slow_loglik(live: Live, context: str, ending: str) -> float:
    """One unpadded pass, every logit, the sum token by token."""
    model, tokenizer = live
    ids = tokenizer(context + ending)["input_ids"]
    start = len(tokenizer(context)["input_ids"])
    logits = model(torch.tensor([ids])).logits[0].double()
    found = torch.log_softmax(logits, -1)
    return float(sum(found[at - 1, ids[at]] for at in range(start, len(ids))))


@pytest.mark.parametrize("kind", ["letters", "cloze"])
@pytest.mark.parametrize("family", ["demo", "gpt_oss", "deepseek_v3", "qwen3_5_moe"])
def test_numbers_are_those_of_one_plain_pass_a_choice(
    kind: str, family: str, tiny: Any, demo: Live
) -> None:
    live = demo if family == "demo" else live_tiny(tiny, family)
    task = task_of(kind)
    name = {"letters": "logprobs", "cloze": "loglik"}[kind]
    for sample, question in zip(asked(live, task), task.questions, strict=True):
        (context,) = context_texts(task, question, tokenizer=live[1])
        want = [slow_loglik(live, context, end) for end in continuation_texts(task, question)]
        np.testing.assert_allclose(sample.details[name], want, rtol=0, atol=5e-5)
        best = int(np.argmax(want))
        assert sample.prediction == ("ABCD"[best] if kind == "letters" else question.choices[best])
        assert sample.correct == (best == question.right) == bool(sample.metrics["acc"])
        if kind == "cloze":
            size = [len(choice) for choice in question.choices]
            per = int(np.argmax(np.divide(want, size)))
            assert sample.metrics["acc_norm"] == float(per == question.right)
            per = int(np.argmax(np.divide(want, [len(c.encode()) for c in question.choices])))
            assert sample.metrics["acc_bytes"] == float(per == question.right)


def test_letters_of_one_token_cost_one_row_a_question(demo: Live) -> None:
    model, _ = demo
    seen: list[tuple[int, ...]] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        asked(demo, task_of("letters", shots=0), batch_size=64)
        rows = sum(shape[0] for shape in seen)
        assert rows == 18 and len(seen) == 1
        seen.clear()
        asked(demo, task_of("cloze", shots=0), batch_size=7)
        assert max(shape[0] for shape in seen) <= 7
    finally:
        hook.remove()


@contextmanager
def batch_noise(model: Any, size: float) -> Iterator[None]:
    """Logits of a row move, in another direction in every row, unless the row is alone."""

    def moved(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        if logits.shape[0] == 1:
            return logits
        generator = torch.Generator().manual_seed(logits.shape[0] * 1000 + logits.shape[1])
        return logits + size * torch.randn(logits.shape, generator=generator)

    hook = model.get_output_embeddings().register_forward_hook(moved)
    try:
        yield
    finally:
        hook.remove()


def test_what_rounding_could_decide_is_decided_alone(demo: Live) -> None:
    """Choices that are nearly equal: two tokens with the same row in the head."""
    model, tokenizer = load_causal_lm(calibration_folder() / "demo" / "model"), demo[1]
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        for one, other in (("A", "B"), ("C", "D")):
            ids = [tokenizer(letter)["input_ids"][0] for letter in (one, other)]
            model.lm_head.weight[ids[1]] = model.lm_head.weight[ids[0]]
    live, task = (model, tokenizer), task_of("letters")
    want = asked(live, task, batch_size=1)
    # Equal ones: the first.
    assert {sample.prediction for sample in want} <= {"A", "C"}
    assert all(sample.details["close"] for sample in want)
    with batch_noise(model, 1e-6):
        for batch_size in (3, 64):
            found = asked(live, task, batch_size=batch_size)
            assert [s.prediction for s in found] == [s.prediction for s in want]
            assert [s.details for s in found] == [s.details for s in want]


def test_numbers_far_apart_are_not_asked_twice(demo: Live) -> None:
    passes: list[int] = []
    hook = demo[0].register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        found = asked(demo, task_of("cloze", shots=0), batch_size=64)
    finally:
        hook.remove()
    assert not any(sample.details["close"] for sample in found)
    # 18 questions of 4 choices, 64 sequences a pass.
    assert len(passes) == 2


@pytest.mark.parametrize(("kind", "protocol"), [ASKED[1], ASKED[4]])
def test_processes_share_batches_and_kept_answers_stay(
    kind: str, protocol: dict[str, Any], demo: Live
) -> None:
    task = task_of(kind, **protocol)
    seeds = (0, 1) if kind == "generate" else None
    want = asked(demo, task, seeds=seeds, batch_size=8)
    requests = requests_of(
        task, encoder=Encoder(demo[1], max_length=512), tokenizer=demo[1], seeds=seeds
    )
    assert [sample.key[1:] for sample in want] == [request.key for request in requests]
    number = num_batches(demo[0], task, requests, batch_size=8)
    assert number > 2

    def dealt(process: int, of: int) -> Callable[[int], bool]:
        return lambda batch: batch % of == process

    parts = [asked(demo, task, seeds=seeds, batch_size=8, holds=dealt(p, 2)) for p in range(2)]
    assert all(parts)
    joined = {sample.key: sample for part in parts for sample in part}
    assert len(joined) == sum(map(len, parts)) == len(want)
    check_same([joined[sample.key] for sample in want], want)
    # What is kept is not asked for again, wherever it came from.
    told: list[Sample] = []
    kept = {
        sample.key[1:]: replace(sample, details={"kept": True})
        for sample in want
        if sample.id in ("q3", "q7", "q8")
    }
    again = asked(demo, task, seeds=seeds, batch_size=8, kept=kept, on_done=told.extend)
    assert [sample.key for sample in again] == [sample.key for sample in want]
    assert {sample.id for sample in again if "kept" in sample.details} == {"q3", "q7", "q8"}
    assert len(told) == len(want) - len(kept)
    assert not {sample.key for sample in told} & {s.key for s in want if s.key[1:] in kept}
    everything = {sample.key[1:]: sample for sample in want}
    assert asked(demo, task, seeds=seeds, kept=everything, on_done=told.extend) == want


def test_samples_can_be_written_and_say_what_was_asked(demo: Live) -> None:
    for kind, protocol in ASKED:
        task = task_of(kind, **protocol)
        for sample in asked(demo, task):
            assert Sample.from_json(json.loads(sample.to_line()), "here") == sample
            assert len(sample.input) == 64 and sample.task == "t"
            assert writes(task) == (sample.truncated is not None) == bool(sample.tokens)


def test_an_answer_ends_at_a_stop_text_or_its_budget(demo: Live) -> None:
    found = asked(demo, task_of("generate", max_new_tokens=1, stop=()))
    assert all(sample.truncated and sample.tokens == 1 for sample in found)
    whole = asked(demo, task_of("generate", stop=(), max_new_tokens=30))
    cut = asked(demo, task_of("generate", stop=("1",), max_new_tokens=30))
    assert any("1" in sample.details["text"] for sample in whole)
    for one, other in zip(whole, cut, strict=True):
        head, stop, _ = one.details["text"].partition("1")
        assert other.details["text"] == head
        # A token is a letter: the stop text is the last one that was written.
        assert other.tokens == (len(head) + 1 if stop else one.tokens)
        assert other.truncated == (one.truncated and not stop)


def test_loops_are_counted_apart_from_budgets(tiny: Any) -> None:
    live = live_tiny(tiny, "qwen3_moe")
    found = asked(live, task_of("degeneration", max_new_tokens=120, stop=()))
    assert all(sample.truncated for sample in found)
    looped = [sample for sample in found if sample.metrics["loop"]]
    assert 0 < len(looped) < len(found)
    for sample in found:
        assert sample.correct == (sample.prediction == "no loop") == (not sample.metrics["loop"])
        assert ("period" in sample.details) == bool(sample.metrics["loop"])


def test_code_that_comes_with_a_checkpoint_is_never_padded(tiny: Any) -> None:
    model, tokenizer = live_tiny(tiny, "qwen3_moe")
    task = task_of("cloze")
    want = asked((model, tokenizer), task, batch_size=1)

    class Own(type(model)):  # type: ignore[misc]
        pass

    Own.__module__ = "transformers_modules.own.modeling_own"
    model.__class__ = Own
    masks: list[bool] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: masks.append("attention_mask" in kwargs), with_kwargs=True
    )
    try:
        check_same(asked((model, tokenizer), task, batch_size=64), want)
        assert masks and not any(masks)
        model.__class__ = type(model).__base__
        check_same(asked((model, tokenizer), task, batch_size=64), want)
        assert any(masks)
    finally:
        hook.remove()


def test_what_cannot_be_asked_is_said_in_one_line(tiny: Any, demo: Live) -> None:
    model, tokenizer = live_tiny(tiny, "qwen3_moe")
    with pytest.raises(UsageError, match=r"no kind of task named 'letter'.*'letters'"):
        asked(demo, task_of("letter"))
    with pytest.raises(UsageError, match="texts have no token"):
        text = Question(id="a", domain="d", text="")
        asked(
            (model, tokenizer),
            Task(name="t", protocol=Protocol(kind="perplexity"), questions=(text,)),
        )
    for seeds in ((), (1, 1)):
        with pytest.raises(UsageError, match="must be different ones, at least one"):
            asked(demo, task_of("generate", temperature=1.0), seeds=seeds)
    with pytest.raises(CheckpointError, match="gives token 272, the model has 272"):
        tokenizer.add_tokens([*(f"<{number}>" for number in range(12)), "What"])
        asked((model, tokenizer), task_of("cloze"))
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(CheckpointError, match=r"question 'q\d+': .* log-probability nan"):
        asked((model, load_tokenizer(tiny("qwen3_moe"))), task_of("letters"))
    model = load_causal_lm(tiny("qwen3_moe"))

    def canvas(_: Any, __: Any, output: Any) -> Any:
        output.logits = output.logits[:, :1]
        return output

    model.register_forward_hook(canvas)
    with pytest.raises(UnsupportedModelError, match=r"gives 1 logits for \d+ tokens"):
        asked((model, load_tokenizer(tiny("qwen3_moe"))), task_of("cloze"))
    task = task_of("generate")
    requests = requests_of(task, encoder=Encoder(demo[1], max_length=99), tokenizer=demo[1])
    with pytest.raises(UsageError, match="nothing lets a model write"):
        ask(demo[0], task, requests, tokenizer=demo[1])
    with pytest.raises(UnsupportedModelError, match="Leave out the tasks of kind generate"):
        writer(torch.nn.Linear(1, 1), demo[1])


@pytest.mark.parametrize("kind", ["cloze", "generate"])
def test_a_full_gpu_is_said_in_one_line(kind: str, tiny: Any) -> None:
    model, tokenizer = live_tiny(tiny, "qwen3_moe")

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError

    model.model.forward = full
    with pytest.raises(UsageError, match=r"tokens.* GPU's memory; give a smaller --batch-size"):
        asked((model, tokenizer), task_of(kind))


def test_batches_hold_whole_questions_and_no_more_than_fits(demo: Live) -> None:
    task = task_of("cloze", shots=0)
    requests = requests_of(task, encoder=Encoder(demo[1], max_length=512), tokenizer=demo[1])

    def made(room: Room, **how: Any) -> list[list[Request]]:
        numbers = list(batches(requests, room, **{"equal_lengths": False, **how}))
        assert sorted(n for batch in numbers for n in batch) == list(range(len(requests)))
        return [[requests[n] for n in batch] for batch in numbers]

    for rows in (1, 4, 9, 1000):
        for batch in made(Room(rows=rows, tokens=1 << 62)):
            assert sum(request.num_rows for request in batch) <= max(rows, 4)
    for tokens in (1, 700, 10**6):
        for batch in made(Room(tokens=tokens), spare=5):
            width = max(request.size for request in batch) + 5
            assert len(batch) == 1 or width * sum(r.num_rows for r in batch) <= tokens
    sizes = [request.size for batch in made(Room(tokens=700)) for request in batch]
    assert sizes == sorted(sizes, reverse=True)
    for batch in made(Room(), equal_lengths=True):
        assert len({request.size for request in batch}) == 1
    for bad in ({"rows": 0}, {"tokens": 0}):
        with pytest.raises(UsageError, match="give at least 1"):
            Room(**bad)
