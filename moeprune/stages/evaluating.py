"""One model, some variants of it and some questions: everything asked, as runs in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.progress import OnProgress, ignore
from moeprune.core.run import Run
from moeprune.stages.agreeing import agreements
from moeprune.stages.agreement_texts import AgreementText, agreement_texts, check_same_ids
from moeprune.stages.answer_losses import Losing, asked_for, wanted_texts
from moeprune.stages.begun import engine
from moeprune.stages.eval_asking import Asking, rooms
from moeprune.stages.eval_guards import after, before, setting
from moeprune.stages.eval_harness import rows_of
from moeprune.stages.eval_header import check_inputs, guarded, made_with, run_of, task_entries
from moeprune.stages.eval_journal import Answers
from moeprune.stages.eval_model import AskedModel, open_asked
from moeprune.stages.eval_selfcheck import check_variants
from moeprune.stages.eval_tasks import Exam, read_exam
from moeprune.stages.eval_variants import Variant
from moeprune.stages.eval_words import EvalWords
from moeprune.stages.measuring import Stop, never
from moeprune.stages.numbering import open_beside
from moeprune.stages.together import Work

if TYPE_CHECKING:
    from moeprune.observe.processes import Processes


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a model is loaded and asked; as :func:`moeprune.stages.eval.eval` takes it."""

    agreement_with: str | Path | None = None
    answer_loss: bool | None = False
    batch_size: int | None = None
    effect: float = 0.01
    dtype: str = "auto"
    device: str | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    resume: bool = True
    stop: Stop = never
    on_progress: OnProgress = ignore
    on_warning: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What came of it, before anything is written.

    Attributes:
        asked: the model.
        exam: what was asked.
        variants: of whom.
        runs: their answers, in the same order.
        seen: what ``first`` returned.
        answers: where they were kept meanwhile; to be removed when the result is written.
        speaks: whether this process writes it.
    """

    asked: AskedModel
    exam: Exam
    variants: tuple[Variant, ...]
    runs: tuple[Run, ...]
    seen: Any
    answers: Answers
    speaks: bool


def evaluate(
    crew: Processes,
    model: str | Path,
    words: EvalWords,
    how: How,
    *,
    out: Path | None,
    choose: Callable[[AskedModel], Sequence[Variant]],
    check: Callable[[Exam], None] | None = None,
    first: Callable[[Any, AskedModel, Exam, Sequence[Variant]], Any] | None = None,
) -> Evaluated:
    """Ask every variant everything.

    Args:
        crew: the processes of this launch.
        model: folder or Hub id.
        words: what is asked.
        how: it is asked.
        out: where the result will be written; None: nowhere, and nothing is kept meanwhile.
        choose: the variants of the model.
        check: looks at the questions before the model is loaded.
        first: looks at the loaded model before it is asked anything; None: what checks that its
            policies act.

    Raises:
        StoppedError: ``how.stop`` said so.
        MoePruneError: the model, a plan, a policy, a task, an option or the output does not serve.
    """
    work = Work(crew, expert_parallel=1)
    asked = crew.first_here(partial(open_asked, model, revision=how.revision))
    chosen = tuple(choose(asked))
    beside = None
    if how.agreement_with is not None:
        opening = partial(open_beside, how.agreement_with, asked)
        beside = crew.first_here(partial(opening, trust_remote_code=how.trust_remote_code))
    from moeprune.observe.load import check_device, check_dtype
    from moeprune.observe.placed import device_of, num_gpus
    from moeprune.observe.tokenizer import load_tokenizer

    trust = how.trust_remote_code
    check_dtype(how.dtype)
    place = device_of(crew.launch, how.device, gpus=num_gpus())
    room = {"place": check_device(place), "processes": crew.launch.local_world}
    for one in (asked, *(() if beside is None else (beside.theirs.asked,))):
        one.check_fits(dtype=how.dtype, **room)
    asked.check(trust_remote_code=trust)
    tokenizer = load_tokenizer(asked.index.path, trust_remote_code=trust)
    exam = read_exam(words, asked, tokenizer=tokenizer, trust_remote_code=trust)
    if check is not None:
        check(exam)
    losing = wanted_texts(
        how.answer_loss,
        chosen,
        asked,
        exam=exam,
        words=words,
        tokenizer=tokenizer,
        on_warning=how.on_warning if work.speaks else None,
    )
    texts: tuple[AgreementText, ...] = ()
    if beside is not None:
        texts = agreement_texts(exam)
        theirs = beside.theirs.asked
        other = load_tokenizer(theirs.index.path, trust_remote_code=trust)
        check_same_ids(exam, other, name=theirs.name)
    seen = setting(exam, asked, tokenizer=tokenizer, effect=how.effect, expected=words.expected)
    findings = before(seen, how.on_warning if work.speaks else None)
    request = {
        **asked.identity(),
        **engine(place),
        "list of variants": [variant.request() for variant in chosen],
        **words.request(),
        "--dtype": how.dtype,
        "--batch-size": how.batch_size,
        **exam.fingerprint(),
        **({} if beside is None else beside.request()),
        **asked_for(losing),
    }
    work.check_same(request=request)
    answers = Answers.open(out, request, work=work, resume=how.resume)
    loading: dict[str, Any] = {"dtype": how.dtype, "device": place, "trust_remote_code": trust}

    def begin() -> tuple[Any, Any]:
        live = asked.load(**loading)
        if first is not None:
            return live, first(live, asked, exam, chosen)
        check_variants(live, asked, chosen, tokenizer)
        return live, None

    with answers.beginning():
        kept = answers.settled("selection")
        if beside is None or kept is not None:
            (live, looked), agreed = begin(), kept or [{}] * len(chosen)
        else:
            (live, looked), agreed = agreements(
                beside,
                texts,
                chosen,
                begin,
                work=work,
                folder=answers.folder,
                stop=work.asked_to_stop(how.stop),
                on_progress=work.heard(how.on_progress),
                **loading,
            )
            agreed = answers.settle("selection", agreed)
        lost = answers.settled("answer loss") or [{}] * len(chosen)
        if losing and not any(lost):
            lost = answers.settle(
                "answer loss",
                Losing(
                    live=live,
                    asked=asked,
                    texts=losing,
                    batch_size=how.batch_size,
                    work=work,
                    stop=work.asked_to_stop(how.stop),
                    on_progress=work.heard(how.on_progress),
                ).variants(chosen),
            )
    asking = Asking(
        live=live,
        asked=asked,
        tokenizer=tokenizer,
        exam=exam,
        rooms=rooms(how.batch_size, live, exam, answers=answers, work=work),
        rows=rows_of(how.batch_size, live),
        answers=answers,
        kept=answers.number,
        work=work,
        stop=work.asked_to_stop(how.stop),
        on_progress=work.heard(how.on_progress),
    )
    runs = tuple(
        run_of(
            variant,
            asked,
            entries={**task_entries(exam.tasks), **exam.harness.entries},
            samples=samples,
            probe=probe,
            agreement=agreement,
            answer_loss=answer_loss,
            provenance=made_with(live, place, seeds=words.seeds, harness=bool(exam.harness.parts)),
        )
        for variant, agreement, answer_loss, (probe, samples) in zip(
            chosen, agreed, lost, asking.variants(chosen), strict=True
        )
    )
    check_inputs(runs)
    findings = after(runs, exam, seen, findings)
    return Evaluated(
        asked=asked,
        exam=exam,
        variants=chosen,
        runs=tuple(guarded(run, findings) for run in runs),
        seen=looked,
        answers=answers,
        speaks=work.speaks,
    )
