"""Answers found in what models write."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.tasks import Protocol
from moeprune.errors import UsageError
from moeprune.evaluate.extract import check_rule, extract, same

LETTERS = {
    "The answer is (B)": "B",
    "The answer is (B).": "B",
    "B.": "B",
    "**B**": "B",
    "B": "B",
    " b\n": "B",
    "(b)": "B",
    "b) Paris": "B",
    "**B.** Paris": "B",
    "The answer is A. Wait, no: the answer is C.": "C",
    "Answer:\n\nD": "D",
    "**Answer:** (B) Paris": "B",
    "$\\boxed{C}$": "C",
    "Thus \\boxed{\\text{C}}.": "C",
    "The final answer is $\\boxed{\\textbf{(B)}}$": "B",
    "The final answer is $\\mathbf{E}$": "E",
    "答案是B": "B",
    "答案：Ｃ": "C",
    "故选：D。": "D",
    "选项B错误，所以选C": "C",
    "正确答案为 A。": "A",
    "A dog is what I think": None,
    "The answer is a dog": None,
    "The answer is not B but C": "C",
    "Option B is wrong, thus A is correct.": "A",
    "Paris": None,
    "": None,
    "B is the correct answer because A is a decoy": "B",
    "I think it's D": "D",
    "The best answer is [C]": "C",
    "I'd choose option B.": "B",
    "The correct answer is option D": "D",
    "First we look.\nC": "C",
    "The correct option is: B) foo": "B",
    "The answer to this question is B": "B",
    "Therefore, the answer would be (E).": "E",
    "The answer is: I": "I",
    "The answer is I guess B": "B",
    "Hence, C is the answer": "C",
    "A or B? I don't know.": "B",
    "<think>The answer is A</think>\nThe answer is B": "B",
    "Vitamin C helps": "C",
    "the answer is 7": None,
    "The answer is B because answer A is wrong": "B",
    "Answer: C\n\nExplanation: answer choices A and B are wrong": "C",
    "The answer is C. Option A is not the answer.": "C",
    "The answer is most likely B, since A fails": "B",
    "The answer is A because B is heavy": "A",
    "Answer: A dog barks": None,
    "I would go with D here": "D",
    "Answer B": "B",
    "The answer is the letter B": "B",
    "Answer: The correct choice is D": "D",
    "答案是A选项": "A",
    "因此答案应该是 B，A项错误": "B",
    "正确的选项是C": "C",
    "正确的是（D）": "D",
    "B选项正确，C不正确": "B",
    "C不正确，所以是A": "A",
    "选A。": "A",
    "Die Lösung ist B": "B",
    "É": None,
    "don't": None,
    "A's": None,
}
NUMBERS = {
    "It is 1,234.50.": "1234.50",
    "It cost $45": "45",
    "45%": "45",
    "100 %.": "100",
    "-5": "-5",
    "−7": "-7",
    "10-5": "5",
    "10 - 5 = 5": "5",
    "3/4": "3/4",
    "a/3": "3",
    "42.": "42",
    "none at all": None,
    "#### 42": "42",
    "so #### -1,000 days\nQuestion: 7": "-1000",
    "#### none, but 8": "8",
    "#### $42.00.\n\nThat is 7 times 6.": "42.00",
    "#### **42**\n1": "42",
    "#### \\boxed{42}\n1": "42",
    "#### 42 %\n1": "42",
    "#### Step 3: add\nIt is 42.": "42",
    "#### 3. Add them up\nIt is 42.": "42",
    "#### 42\n\n#### Note\nIn 7 days.": "42",
    "#### 41\n#### 42": "42",
    "####42": "42",
    "##### 42\n1": "42",
    "$-3": "-3",
    "-$3": "-3",
    "x=-3": "-3",
    "(-3)": "-3",
    "f(x)-4": "4",
    "- 12": "12",
    "\\frac{3}{4}": "3/4",
    "１２３": "123",
    "1,2,3": "3",
    "3e5": "3e5",
    "$.50": "0.50",
    "\\boxed{1{,}234}": "1234",
    "12,34,567": "1234567",
    "5/12/2020": "2020",
    "1½": "1/2",
    "2.5.": "2.5",
    "wait...5": "5",
    "€ 5": "5",
    "12:30": "30",
    "<think>7 or 8</think> so": None,
}


@pytest.mark.parametrize(("text", "letter"), LETTERS.items())
def test_letters(text: str, letter: str | None) -> None:
    assert extract(text, "letter") == letter


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_last_numbers(text: str, number: str | None) -> None:
    assert extract(text, "last-number") == number


THOUGHTS = {
    "<think>Is it 7?</think>\n\n8": "8",
    "so it is 7.</think>8": "8",  # the prompt began the thought
    "<think>a</think>9<think>b</think>8": "8",
    "<think>It is 7, or": None,
    "\n<think>": None,
    "analysisWe need 7.assistantfinal8": "8",
    "analysisWe need 7. But": None,
    "<|channel|>analysis<|message|>7<|end|><|start|>assistant<|channel|>final<|message|>8": "8",
    "analysis of 8": "analysis of 8",
    "A <think> in the middle": "A <think> in the middle",
    "[THINK]7[/THINK] 8": "8",
    "<seed:think>7</seed:think>8": "8",
}


@pytest.mark.parametrize(("text", "answer"), THOUGHTS.items())
def test_thoughts_are_no_answers(text: str, answer: str | None) -> None:
    assert extract(text, "exact") == answer


def test_exact_and_patterns() -> None:
    assert extract(" Paris\n", "exact") == "Paris" and extract(" \n", "exact") is None
    assert extract("a=1 a=2", r"regex:a=(\d)") == "2"
    assert extract("a=1 a=2", r"regex:a=\d") == "a=2"
    assert extract("b 1, a", r"regex:b (\d)|a") == "1"  # the last match has no group
    assert extract("nothing", r"regex:a=(\d)") is None
    assert extract("<think>a=1</think>a=2 ", "regex:(?s)(.*)") == "a=2"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("regex:(", "is no pattern of Python's re"),
        ("regex:", "names no pattern"),
        ("regex:a{99999999999999999999}", "is no pattern"),
        ("last-nubmer", "Did you mean 'last-number'"),
        ("", "There are: exact, last-number, letter, regex:PATTERN"),
    ],
)
def test_bad_rules_are_one_line(rule: str, said: str) -> None:
    for call in (lambda: check_rule(rule), lambda: extract("x", rule)):
        with pytest.raises(UsageError, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)


def right(
    prediction: str | None, *answers: str, extract: str = "exact", fold: bool = False
) -> bool:
    return same(prediction, answers, Protocol(kind="generate", extract=extract, ignore_case=fold))


def test_what_is_the_same() -> None:
    assert right("Paris", "London", " Paris ") and not right("paris", "Paris")
    assert right("paris", "Paris", fold=True) and right("STRASSE", "straße", fold=True)
    assert not right(None, "Paris") and not right("", "Paris")
    number = {"extract": "last-number"}
    assert right("1200", "1,200.00", **number) and right("3/4", "0.75", **number)
    assert right("42", "He has 6 * 7 = 42\n#### 42", **number)
    assert right("3e2", "300", **number) and not right("42", "43", **number)
    assert not right("42", "forty-two", **number) and not right("1/0", "0", **number)
    assert right("b", "B", extract="letter") and not right("C", "B", extract="letter")


@given(
    value=st.integers(-(10**12), 10**12), style=st.sampled_from(["{}", "{:,}", "{}.", "{:,}.00"])
)
def test_any_whole_number_is_read_however_it_is_written(value: int, style: str) -> None:
    text = f"First 17, then {style.format(value)}"
    found = extract(text, "last-number")
    assert found is not None and Fraction(found) == value
    assert right(found, f"#### {value}", extract="last-number")


@given(text=st.text(alphabet=st.sampled_from("0123456789,.-/$%eE#{}\\frac ½\n١４")))
def test_no_text_breaks_the_reading_of_numbers(text: str) -> None:
    found = extract(text, "last-number")
    assert found is None or (found == found.strip() and not set(found) & set(",$%"))
    assert right(found, text, extract="last-number") in (found is not None, False)


@given(text=st.text(), letter=st.sampled_from("ABCDEFGH"))
def test_a_letter_stated_at_the_end_is_found_after_any_text(text: str, letter: str) -> None:
    assert extract(f"{text}\nThe answer is ({letter}).", "letter") == letter


@given(text=st.text(alphabet=st.sampled_from("ABCI ai.()*\n答案选is answer:\\boxed{}")))
def test_a_letter_is_a_capital_or_nothing(text: str) -> None:
    assert extract(text, "letter") in {None, *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


LONG = (
    *("1,", "22,", "1,234,", "1.", "9", "1/", "-", "$", "1e", "½", "\\frac{1", "####"),
    *("answer is ", "Answer:\n", "A ", "I ", "B is ", "选", "****", "(", "\n", "a) ", "\\boxed{"),
    *("<think>", "assistantfinal", "analysis", " ", "\u00a0"),
)


@pytest.mark.parametrize("piece", LONG)
def test_long_texts_are_read_at_once(piece: str) -> None:
    """Nothing here may take a time that grows with the square of a text."""
    many = piece * (100_000 // len(piece))
    started = time.process_time()
    for text in (many, f"#### 4{many}a b", f"The answer is{many}a b"):
        for rule in ("last-number", "letter", "exact"):
            same(extract(text, rule), (text,), Protocol(kind="generate", extract=rule))
    assert time.process_time() - started < 10  # 1 s was seen; a square would be minutes
