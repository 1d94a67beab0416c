"""What must be stated, for tokenizers with and without chat templates and switches."""

from dataclasses import replace
from typing import Any

import pytest
from tiny import CHAT_TEMPLATE, add_tokenizer
from transformers import AutoTokenizer

from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import UsageError
from moeprune.evaluate.tasks.explicit import check_explicit
from moeprune.evaluate.tasks.prompts import context_texts

PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n"
SWITCH = PROMPT + "{% if not enable_thinking | default(true) %}<no>{% endif %}{% endif %}"
TEMPLATES = {
    "none": None,
    "plain": CHAT_TEMPLATE + PROMPT + "{% endif %}",
    "switch": CHAT_TEMPLATE + SWITCH,
    "deepseek": CHAT_TEMPLATE + SWITCH.replace("enable_thinking", "thinking"),
    "always": CHAT_TEMPLATE + PROMPT + "<think>\n{% endif %}",
    "broken": "{{ raise_exception('only tools') }}",
}
CHAT = "--chat-template on|off"
THINKING = "--thinking on|off"
# template, chat_template, thinking -> what the error names; None: nothing to say
CASES = [
    ("none", None, None, None),
    ("none", False, None, None),
    ("none", False, False, None),
    ("none", True, None, "has none. Pass --chat-template off"),
    ("none", None, True, "--thinking off"),
    ("plain", None, None, CHAT),
    ("plain", False, None, None),
    ("plain", True, None, None),
    ("plain", True, False, None),
    ("plain", True, True, "has no switch for it"),
    ("switch", None, False, CHAT),
    ("switch", False, None, None),
    ("switch", False, True, "Pass --chat-template on"),
    ("switch", True, None, THINKING),
    ("switch", True, True, None),
    ("switch", True, False, None),
    ("deepseek", True, None, THINKING),
    ("deepseek", True, False, None),
    ("always", True, None, None),
    ("always", True, True, None),
    ("always", True, False, "thinks always"),
    ("broken", True, None, "refuses a message of a user (only tools)"),
    ("broken", False, None, None),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(add_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize(("template", "chat", "thinking", "said"), CASES)
def test_what_is_to_be_stated(
    template: str, chat: bool | None, thinking: bool | None, said: str | None, tokenizer: Any
) -> None:
    tokenizer.chat_template = TEMPLATES[template]
    question = Question(id="q", domain="d", text="x", answers=("y",))
    protocol = Protocol(kind="generate", chat_template=chat, thinking=thinking)
    task = Task(name="a task", protocol=protocol, questions=(question,))
    if said is None:
        check_explicit(task, tokenizer)
        return
    with pytest.raises(UsageError) as caught:
        check_explicit(task, tokenizer)
    assert said in str(caught.value) and "'a task'" in str(caught.value)


def test_a_text_that_is_read_as_it_is_states_nothing(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATES["switch"]
    question = Question(id="q", domain="d", text="x")
    task = Task(name="t", protocol=Protocol(kind="perplexity"), questions=(question,))
    check_explicit(task, tokenizer)


@pytest.mark.parametrize("template", ["none", "switch"])
def test_a_system_message_is_not_left_out_in_silence(template: str, tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATES[template]
    question = Question(id="q", domain="d", text="x", answers=("y",))
    protocol = Protocol(kind="generate", chat_template=False, system="Be brief.")
    task = Task(name="t", protocol=protocol, questions=(question,))
    with pytest.raises(UsageError, match="states a system message"):
        check_explicit(task, tokenizer)


def test_effort_is_told_where_the_template_reads_it(tokenizer: Any) -> None:
    question = Question(id="q", domain="d", text="x", answers=("y",))
    protocol = Protocol(kind="generate", chat_template=True, effort="low")
    task = Task(name="t", protocol=protocol, questions=(question,))
    tokenizer.chat_template = "{{ reasoning_effort | default('medium') }}" + TEMPLATES["plain"]
    check_explicit(task, tokenizer)
    assert context_texts(task, question, tokenizer=tokenizer)[0].startswith("low<|im_start|>")
    untold = replace(task, protocol=replace(protocol, effort=None))
    check_explicit(untold, tokenizer)
    assert context_texts(untold, question, tokenizer=tokenizer)[0].startswith("medium<")
    tokenizer.chat_template = TEMPLATES["plain"]
    with pytest.raises(UsageError, match="effort = 'low', which the tokenizer's chat template"):
        check_explicit(task, tokenizer)
    plain = replace(task, protocol=replace(protocol, chat_template=False))
    with pytest.raises(UsageError, match="only a chat template tells it"):
        check_explicit(plain, tokenizer)
