"""Token ids are those of lm-evaluation-harness, for tokenizers that merge, begin and end texts."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from local_harness import harness_model

from moeprune.core.tasks import Question
from moeprune.errors import UsageError
from moeprune.evaluate.encoding import Encoder, max_length_of
from moeprune.evaluate.requests import inputs_sha256, to_score, to_write
from moeprune.observe.load import load_causal_lm

TEXT = "the answer is A. the answer:\n\nB is the other one, then  there; né 数, 10 + 10 = 20\n" * 9
SPECIAL = ["<s>", "</s>", "<pad>"]


def merging(template: str) -> Any:
    """A tokenizer that merges letters, over white space too, with a template for special tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^\n]*\n|[^\n]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=340, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    if template != "$A":
        made.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    begin = {"bos_token": "<s>"} if "<s>" in template else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", pad_token="<pad>", **begin
    )


@pytest.fixture(scope="module")
def harness(tiny: Any) -> Callable[[str], tuple[Any, Any]]:
    model = load_causal_lm(tiny("qwen3_moe"))
    made: dict[str, tuple[Any, Any]] = {}

    def get(template: str) -> tuple[Any, Any]:
        if template not in made:
            tokenizer = merging(template)
            made[template] = tokenizer, harness_model(model, tokenizer)
        return made[template]

    return get


parts = st.sampled_from(
    ["the ", "answer", " is", "A", " A", ".", "\n", "\n\n", "  ", "né", "数", "x", "10 + 10", "<s>"]
)
texts = st.lists(parts, max_size=8).map("".join)


@pytest.mark.parametrize("template", ["$A", "<s> $A"])
@settings(max_examples=150)
@given(context=texts, continuation=texts.filter(bool))
@example(context="", continuation="<s>A")
@example(context="  \n", continuation=" A")
@example(context="<s>the answer is\n", continuation="A")
def test_pairs_are_the_harness_pairs(
    template: str, context: str, continuation: str, harness: Callable[[str], tuple[Any, Any]]
) -> None:
    from lm_eval.api.instance import Instance

    tokenizer, lm = harness(template)
    seen: list[Any] = []

    class Seen(type(lm)):  # type: ignore[misc]
        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[Any]:
            seen.extend((before, after) for _, before, after in requests)
            return []

    own = type(lm)
    lm.__class__ = Seen
    try:
        request = Instance("loglikelihood", {}, (context, continuation), 0)
        lm.loglikelihood([request], disable_tqdm=True)
    finally:
        lm.__class__ = own
    ((before, after),) = seen
    encoder = Encoder(tokenizer, max_length=512)
    if not before and not (context.strip() or template != "$A"):
        # Nothing but white space before: the harness has no token to go on from, and fails.
        before = [encoder.prefix]
    if not before or not after:
        with pytest.raises(UsageError, match="no token of its own"):
            encoder.pair(context, continuation)
        return
    mine = encoder.pair(context, continuation)
    assert [ids.tolist() for ids in mine] == [list(before), list(after)]


@pytest.mark.parametrize("template", ["$A", "<s> $A"])
@settings(max_examples=50)
@given(text=texts.filter(bool))
def test_prompts_are_the_harness_prompts(
    template: str, text: str, harness: Callable[[str], tuple[Any, Any]]
) -> None:
    tokenizer, lm = harness(template)
    ids, mask = lm.tok_batch_encode([text])
    want = ids[0][mask[0].bool()].tolist()
    if template == "$A" and text.startswith("</s>"):
        return
    assert Encoder(tokenizer, max_length=512).prompt(text).tolist() == want


def test_what_a_tokenizer_puts_after_a_text_is_left_out() -> None:
    ends, plain = merging("<s> $A </s>"), merging("<s> $A")
    assert ends("A")["input_ids"] == [*plain("A")["input_ids"], 1]
    mine, want = (Encoder(one, max_length=99) for one in (ends, plain))
    for context, continuation in (("the answer", " is A"), ("", "A"), ("a \n", "b")):
        for ours, other in zip(
            mine.pair(context, continuation), want.pair(context, continuation), strict=True
        ):
            assert ours.tolist() == other.tolist()
    assert mine.prompt("the answer").tolist() == want.prompt("the answer").tolist()


def test_a_merge_over_the_seam_leaves_no_token(harness: Any) -> None:
    tokenizer, _ = harness("$A")
    whole = tokenizer("the answer")["input_ids"]
    assert len(whole) < len(tokenizer("the answe")["input_ids"]) + 1
    with pytest.raises(UsageError, match=r"question 'q': 'r' has no token of its own after"):
        to_score(
            Question(id="q", domain="d", text=""),
            [("the answe", "r")],
            encoder=Encoder(tokenizer, max_length=9),
        )


def test_too_long_is_cut_on_the_left_and_said(harness: Any) -> None:
    tokenizer, _ = harness("<s> $A")
    encoder, question = Encoder(tokenizer, max_length=8), Question(id="q", domain="d", text="")
    context = "x y z x y z x y z"
    request = to_score(question, [(context, " A"), (context, " A B")], encoder=encoder)
    whole = [encoder.pair(context, ending) for ending in (" A", " A B")]
    assert request.cut == max(0, *(a.size + b.size - 9 for a, b in whole)) > 0
    for piece, (before, after) in zip(request.pieces, whole, strict=True):
        assert piece.input_size == 8 and piece.continuation.tolist() == after.tolist()
        assert piece.context.tolist() == before.tolist()[-piece.context.size :]
    with pytest.raises(UsageError, match=r"'q': .* has 1[0-9] tokens, the model reads 8"):
        to_score(question, [("x", context)], encoder=encoder)
    written = to_write(question, context, encoder=encoder, max_new_tokens=3, seed=4)
    assert written.prompt is not None and written.prompt.size == 5 and written.key == ("q", 4)
    assert written.cut == encoder.prompt(context).size - 5
    with pytest.raises(UsageError, match="max_new_tokens 8 leaves no room"):
        to_write(question, context, encoder=encoder, max_new_tokens=8, seed=0)


def test_a_hash_tells_where_pieces_end(harness: Any) -> None:
    encoder = Encoder(harness("$A")[0], max_length=99)

    def asked(*pairs: tuple[str, str], id_: str = "q") -> Any:
        return to_score(Question(id=id_, domain="d", text=""), pairs, encoder=encoder)

    first = asked(("x", "yz"), ("x", "z"))
    assert first.sha256 == asked(("x", "yz"), ("x", "z")).sha256
    others = [asked(("xy", "z"), ("x", "z")), asked(("x", "z"), ("x", "yz")), asked(("x", "yz"))]
    assert len({first.sha256, *(other.sha256 for other in others)}) == 4
    assert first.num_rows == 2 and asked(("x", "y"), ("x", "z")).num_rows == 1
    renamed = asked(("x", "yz"), ("x", "z"), id_="r")
    assert first.sha256 == renamed.sha256
    assert inputs_sha256([first]) != inputs_sha256([renamed])


def test_length_is_what_the_model_states_else_the_tokenizer(tiny: Any) -> None:
    model, tokenizer = load_causal_lm(tiny("qwen3_moe")), merging("$A")
    assert max_length_of(model, tokenizer) == 512
    model.config.max_position_embeddings = 0  # no length is stated
    assert max_length_of(model, tokenizer) == 2048
    tokenizer.model_max_length = 77
    assert max_length_of(model, tokenizer) == 77


def test_without_begin_and_end_tokens_nothing_can_be_first() -> None:
    tokenizer = merging("$A")
    tokenizer.eos_token = None
    encoder = Encoder(tokenizer, max_length=9)
    assert encoder.pair("x", "y")[1].size == 1
    with pytest.raises(UsageError, match="neither a begin nor an end token"):
        encoder.pair("", "y")
    with pytest.raises(UsageError, match="leaves nothing to predict"):
        Encoder(tokenizer, max_length=1)


def test_a_text_that_is_none_is_named() -> None:
    encoder = Encoder(merging("$A"), max_length=9)
    with pytest.raises(UsageError, match=r"question 'q': the tokenizer fails on '\\ud800 b'"):
        to_score(Question(id="q", domain="d", text=""), [("\ud800 b", "x")], encoder=encoder)
