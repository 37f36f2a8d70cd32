"""Chats with the templates of checkpoints: texts, places of templates, and errors of failing ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="chat templates need jinja2")

from aot_models.generation.chat import ChatError, ChatTemplate
from models.tests.generation.chat_templates import GEMMA, LLAMA3, MISTRAL, QWEN, TEMPLATES

ASKED = [{"role": "user", "content": " Who <was> it? "}]
CHAT = [*ASKED, {"role": "assistant", "content": "<think>\nhm</think>\n\nÄ & B"}, {"role": "user", "content": "Why?"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"<a>": "&'"}}}]
CASES = {
    "system": ({"messages": [{"role": "system", "content": "Be\nkind."}, *CHAT]}),
    "chat": ({"messages": CHAT}),
    "no prompt": ({"messages": CHAT, "add_generation_prompt": False}),
    "variables": ({"messages": ASKED, "tools": TOOLS, "enable_thinking": False, "date_string": "1 May 2030"}),
}


def test_the_texts_of_well_known_formats():
    text = ChatTemplate(MISTRAL, SPECIAL).render([{"role": "system", "content": "Be kind."}, *CHAT])
    answer = CHAT[1]["content"]
    assert text == f"<s>[INST] Be kind.\n\n Who <was> it? [/INST] {answer}</s>[INST] Why?[/INST]"
    text = ChatTemplate(GEMMA, SPECIAL).render(ASKED)
    assert text == "<s><start_of_turn>user\nWho <was> it?<end_of_turn>\n<start_of_turn>model\n"
    text = ChatTemplate(QWEN, SPECIAL).render([*CHAT, {"role": "tool", "content": None}], tools=TOOLS)
    tool = '{"type": "function", "function": {"name": "größe", "parameters": {"<a>": "&\'"}}}'
    assert text == (
        f"<|im_start|>system\nTools:\n{tool}<|im_end|>\n<|im_start|>user\n Who <was> it? <|im_end|>\n"
        "<|im_start|>assistant\nÄ & B<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )
    today = ChatTemplate('{{ strftime_now("%Y") }}').render([])
    assert ChatTemplate(LLAMA3, SPECIAL).render(ASKED).count(today) == 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_and_tokens_are_those_of_transformers(name: str, case: str, tmp_path: Path):
    """The tokenizer's post-processor adds <s>; after a template, the template's own <s> is the only one."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tokenizers import Tokenizer, processors

    from aot_models.random_checkpoint import write_tokenizer

    path = tmp_path / "tokenizer.json"
    write_tokenizer(path, 300)
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([*SPECIAL.values(), "<|im_start|>", "<|eot_id|>"])
    beginning = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[beginning])
    tokenizer.save(str(path))
    write_config(tmp_path, chat_template=TEMPLATES[name])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    given = {"add_generation_prompt": True, **CASES[case]}
    try:
        wanted = theirs.apply_chat_template(given.pop("messages"), tokenize=False, **given)
    except Exception as error:
        with pytest.raises(ChatError, match=str(error)):
            ChatTemplate.read(tmp_path).render(**CASES[case])
        return
    text = ChatTemplate.read(tmp_path).render(**CASES[case])
    assert text == wanted
    tokens = theirs.apply_chat_template(CASES[case]["messages"], tokenize=True, return_dict=False, **given)
    assert tokenizer.encode(text, add_special_tokens=False).ids == tokens


def write_config(folder: Path, **values: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({**SPECIAL, **values}), encoding="utf-8")


def test_where_templates_are(tmp_path: Path):
    """Template files precede tokenizer_config.json. Special tokens are strings, or objects with a string."""

    def rendered(name: str = "") -> str:
        return ChatTemplate.read(tmp_path, name).render([])

    with pytest.raises(ChatError, match=r"has no chat template: neither chat_template\.jinja nor one in tokenizer_con"):
        rendered()
    write_config(tmp_path, chat_template="one {{ bos_token }}", bos_token={"content": "<b>", "lstrip": False})
    assert rendered() == "one <b>"
    listed = [{"name": "default", "template": "two"}, {"name": "rag", "template": "three"}]
    write_config(tmp_path, chat_template=listed)
    assert (rendered(), rendered("rag")) == ("two", "three")
    with pytest.raises(ChatError, match=r"has no chat template 'tool_use'; it has default, rag$"):
        rendered("tool_use")
    write_config(tmp_path, chat_template=[*listed[1:], {"name": "short", "template": ""}])
    with pytest.raises(ChatError, match="has no chat template 'default'; it has rag, short"):
        rendered()
    (tmp_path / "chat_template.jinja").write_text("four")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("five")
    assert (rendered(), rendered("rag")) == ("four", "five")


@pytest.mark.parametrize(
    ("found", "message"),
    (
        ([], "not a JSON object"),
        ({"chat_template": 3}, "chat_template: it is 3, and should be a text or a list"),
        ({"chat_template": {"default": "x"}}, "chat_template: it is "),
        ({"chat_template": ["x"]}, "an entry is x, and should have a 'name' and a 'template'"),
        ({"chat_template": [{"name": "default", "template": 1}]}, "an entry is "),
        ({"chat_template": "x", "bos_token": 7}, "bos_token is 7, and should be a text"),
        ({"chat_template": "x", "eos_token": {"lstrip": True}}, "eos_token is "),
    ),
)
def test_configs_of_other_forms(found: object, message: str, tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(found))
    with pytest.raises(ChatError, match=rf"tokenizer_config\.json.*: {message}|tokenizer_config\.json, {message}"):
        ChatTemplate.read(tmp_path)


def test_files_that_are_none(tmp_path: Path):
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(b"\xff")
    with pytest.raises(ChatError, match=r"jinja: not UTF-8"):
        ChatTemplate.read(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ChatError, match=r"jinja: not a regular file"):
        ChatTemplate.read(tmp_path)


LOOP = "{% for i in range(99999) %}"
LIMITS = {
    "loops": (LOOP * 2 + "{% endfor %}" * 2, r"it takes more than 0\.5 s"),
    "a text": ("{{ 'a' * (10**10) }}", "256 MiB"),
    "doubling": (
        "{% set n = namespace(v='a') %}" + LOOP + "{% set n.v = n.v ~ n.v %}{% endfor %}",
        "256 MiB",
    ),
    "a power": ("{{ 9 ** (9 ** 9) }}", r"it takes more than 0\.5 s|256 MiB|too large"),
    "a number's width": ("{{ '%999999999d' % 1 }}", "256 MiB"),
    "a long text": ("{{ 'a' * 20000000 }}", "its text has more than 16777216 characters"),
    "itself": ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "it calls itself without end"),
    "nesting": ("{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}", "it calls itself|process ended|line 1"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_templates_keep_to_their_limits(name: str):
    source, message = LIMITS[name]
    start = time.perf_counter()
    with pytest.raises(ChatError, match=rf"the chat template: .*({message})"):
        ChatTemplate(source, seconds=0.5).render(ASKED)
    assert time.perf_counter() - start < 30, "of a machine that has much else to do"


def test_a_process_renders_many_chats_and_ends_with_its_template():
    template = ChatTemplate("{{ messages[0].content }}{{ bos_token }}", SPECIAL)
    assert [template.render([{"role": "user", "content": text}]) for text in ("a", "\ud800", "é")] == [
        "a<s>", "\ud800<s>", "é<s>",
    ]  # fmt: skip
    process = template._renderer._process
    assert process.poll() is None
    with pytest.raises(ChatError, match="not JSON serializable"):
        template.render([{"role": "user", "content": object()}])
    del template
    assert process.poll() is not None


@pytest.mark.parametrize(
    "source, message",
    (
        ("a\n{% for %}", "line 2: Expected an expression, got 'end of statement block'"),
        ("{{ raise_exception('No tools, please') }}", "No tools, please"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[3].content.x }}", "has no element 3"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{% set _ = messages.append(1) %}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{% for i in range(9999999) %}{% endfor %}", "Range too big"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{{ {}['a'] | tojson }}", "Undefined is not JSON serializable"),
    ),
)
def test_templates_that_fail(source: str, message: str, tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(ChatError, match=rf"chat_template\.jinja.*{message}"):
        ChatTemplate.read(tmp_path).render(ASKED)
