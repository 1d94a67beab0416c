"""scan: a grid of k₁ and k₂ by one load, on fixed text and on tasks, paired against native."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.artefact import readable_json
from moeprune.core.plan import PrunePlan
from moeprune.core.policy_words import Rank
from moeprune.core.progress import OnProgress, ignore
from moeprune.core.scan import SCAN_FILE, Scan
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UsageError
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_output import alone, check_output, write_runs
from moeprune.stages.eval_tasks import Exam
from moeprune.stages.eval_texts import check_apart, splits
from moeprune.stages.eval_variants import Variant, applied
from moeprune.stages.eval_words import EvalWords, Sources
from moeprune.stages.evaluating import How, evaluate
from moeprune.stages.joined import joint
from moeprune.stages.measuring import Stop, never
from moeprune.stages.policies import self_check
from moeprune.stages.scan_gains import first_tokens, measured_gains
from moeprune.stages.scan_points import Points, ScanWords, points_of
from moeprune.stages.scan_result import Commands, Looked, result_of

if TYPE_CHECKING:
    from moeprune.observe.processes import Processes

CHUNKS = 16
"""Windows of each built-in text and split, where nothing else is said."""
_CHECKED = 512  # tokens of the self-check


@partial(joint, alone=alone)
def scan(
    crew: Processes,
    model: str | Path,
    *,
    output: str | Path | None = None,
    k1: int | Sequence[int] = (),
    k2: Rank | Sequence[Rank] = (),
    plan: str | Path | PrunePlan | None = None,
    gain: float | Sequence[float] = (),
    ablations: bool = False,
    stats: str | Path | CalibrationStats | None = None,
    tasks: str | Path | Sequence[str | Path] = (),
    corpus: Mapping[str, str] | Sequence[str] | None = None,
    held_out: Mapping[str, str] | Sequence[str] | None = None,
    chunk: int = 2048,
    chunks: int | None = None,
    limit: int | None = None,
    shots: int | None = None,
    chat_template: bool | None = None,
    thinking: bool | None = None,
    think_end: str = "</think>",
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    seeds: int = 1,
    batch_size: int | None = None,
    expected: Mapping[str, float] | None = None,
    effect: float = 0.01,
    include: str | Path | Sequence[str | Path] = (),
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
    resume: bool = True,
    stop: Stop = never,
    on_progress: OnProgress = ignore,
    on_warning: Callable[[str], None] | None = None,
) -> Scan:
    """Try numbers of experts per token, and what their weights are divided by.

    An evaluation (:func:`moeprune.stages.eval.eval`, which explains what is not explained here) of
    the model itself and of a grid of policies, and what it says. First it is checked that policies
    act on the model at all.

    Args:
        crew: the processes of this launch; given by the decorator.
        model: folder or Hub id of a model with experts.
        output: a folder to write: ``scan.json``, and a run folder a row.
        k1: experts that run per token; none: half of the model's own number.
        k2: ranks whose probability the weights are divided by; ``"E"``: all. For every k₁ these,
            and k₁, k₁ + 1, k and 2k.
        plan: which experts stay; the others are masked.
        gain: factors of all weights, each tried at k₂ = k₁.
        ablations: equal weights, sampled and random experts, at the model's own k₁ and k₂.
        stats: of the model: what ``export --fold-gain`` would write, beside each point.
        tasks: task files, folders of them, and names of lm-eval's, ``lm_eval:NAME``.
        corpus: name -> source of texts to choose k₂ by; without ``held_out``, every other document
            of each is held out. None: the built-in texts.
        held_out: the same, of texts to see by what the choice is worth; with ``corpus``.
        chunk: tokens of a window.
        chunks: windows of each text and split; None: all, and of built-in texts 16.
        limit: questions a task; None: as the task says.
        shots: solved questions before each.
        chat_template: questions are written as a chat.
        thinking: the template is told to let the model think.
        think_end: text after which the answer stands, in tasks of lm-eval.
        max_new_tokens: budget of a written answer.
        temperature: 0: greedy.
        seeds: how often a question is asked whose answer is drawn.
        batch_size: sequences side by side; None: as many as fit.
        expected: task -> accuracy that the model is known to reach.
        effect: difference in accuracy that is looked for.
        include: folders of lm-eval's YAML tasks.
        dtype: number type to load the model in.
        device: where to run.
        trust_remote_code: run code that comes with the checkpoint.
        revision: of a Hub model.
        overwrite: replace an earlier scan of that name.
        resume: go on where an interrupted scan of the same request stopped.
        stop: asked after every batch whether to stop there.
        on_progress: told of the questions answered.
        on_warning: told what protocol guards find before a question is asked.

    Raises:
        VerificationError: policies do not act on this model; the message says what was not hit.
        StoppedError: ``stop`` said so.
        MoePruneError: the model, the grid, a text, a task or the output does not serve.
    """
    out = None if output is None else Path(output)
    if out is not None:
        check_output(out, overwrite=overwrite)
    texts = _texts(corpus, held_out)
    words = EvalWords(
        tasks=tasks,
        corpus=texts.get("corpus"),
        held_out=texts.get("held_out"),
        split=texts.get("split"),
        chunk=chunk,
        chunks=CHUNKS if chunks is None and not (corpus or held_out) else chunks,
        limit=limit,
        shots=shots,
        chat_template=chat_template,
        thinking=thinking,
        think_end=think_end,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seeds=seeds,
        expected=expected or {},
        include=include,
    )
    how = How(
        batch_size=batch_size,
        effect=effect,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
        revision=revision,
        resume=resume,
        stop=stop,
        on_progress=on_progress,
        on_warning=on_warning,
    )
    stated = ScanWords(
        k1=_several(k1),
        k2=_several(k2),
        gain=_several(gain),
        ablations=ablations,
        stats=stats,
        plan=PrunePlan.load(Path(plan)) if isinstance(plan, str | Path) else plan,
    )
    found: list[Points] = []

    def choose(asked: AskedModel) -> Sequence[Variant]:
        found.append(points_of(stated, asked))
        return found[0].variants

    done = evaluate(
        crew,
        model,
        words,
        how,
        out=out,
        choose=choose,
        check=_check_texts,
        first=_looked,
    )
    commands = Commands(
        model=str(model),
        plan="PLAN" if isinstance(plan, PrunePlan) else None if plan is None else str(plan),
        output=None if out is None else str(out),
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    result = result_of(done, found[0], chunk=chunk, commands=commands)
    if out is not None and done.speaks:
        body = {SCAN_FILE: readable_json(result.to_json()).encode()}
        write_runs(out, done.runs, one=False, beside=body)
    done.answers.remove()
    return result


def _several(values: Any) -> tuple[Any, ...]:
    """What is stated of an axis: one value, or several; None: nothing."""
    if values is None:
        return ()
    return (
        tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)
    )


def _texts(
    corpus: Mapping[str, str] | Sequence[str] | None,
    held_out: Mapping[str, str] | Sequence[str] | None,
) -> dict[str, Sources]:
    """Which texts are for what: two splits, or one text for both."""
    if held_out and not corpus:
        raise UsageError(
            "--held-out alone leaves no text to choose k2 by. Give --corpus too, or --corpus "
            "alone: then every other document of it is held out."
        )
    if held_out:
        return {"corpus": corpus, "held_out": held_out}
    if corpus:
        return {"split": corpus}
    from moeprune.observe.sources import BUILTIN, builtin_names

    return {"split": {name: f"{BUILTIN}{name}" for name in builtin_names()}}


def _check_texts(exam: Exam) -> None:
    """What a scan reads: apart from each other, and long enough for the self-check."""
    texts = splits(exam.tasks, exam.requests)
    check_apart(texts.values())
    longest = max(map(len, first_tokens(next(iter(texts.values())))))
    if longest < 2:
        raise UsageError(
            f"no chunk of the first text has more than {longest} token, and the self-check needs "
            "2. Give longer text."
        )


def _looked(live: Any, asked: AskedModel, exam: Exam, variants: Sequence[Variant]) -> Looked:
    """The self-check, and then the gain of every variant."""
    texts = first_tokens(next(iter(splits(exam.tasks, exam.requests).values())))
    longest = max(texts, key=len)[:_CHECKED]
    plan = variants[0].plan
    with applied(Variant(name="", plan=plan), live, asked):
        keep = None if plan is None else plan.keep
        check = self_check(live, asked.routed, longest, keep)
    return Looked(check=check.to_json(), gains=tuple(measured_gains(live, asked, variants, texts)))
