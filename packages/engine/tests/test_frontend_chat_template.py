"""Chat templates: rendered as their authors meant, refused in their own words, and bounded."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from engine.config.engine_config import EngineConfig
from engine.frontend.chat_messages import ContentFormat
from engine.frontend.chat_template import (
    RESERVED_NAMES,
    ChatTemplate,
    build_chat_template,
    check_template_kwargs,
)
from engine.types.errors import ConfigError, InvalidRequestError
from frontend_fakes import ByteTokenizer, make_config

PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
USER = [{"role": "user", "content": "hi"}]


def render(template: str, messages: Any = USER, **kwargs: Any) -> str:
    return ChatTemplate(template, ByteTokenizer()).render(messages, **kwargs)  # type: ignore[arg-type]


def refused(template: str, messages: Any = USER, **kwargs: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        render(template, messages, **kwargs)
    return caught.value


def turns(*contents: str) -> list[dict[str, str]]:
    return [
        {"role": "user" if i % 2 == 0 else "assistant", "content": content}
        for i, content in enumerate(contents)
    ]


@pytest.mark.parametrize(
    ("wanted", "text"), [(True, "<|user|>hi<|end|><|assistant|>"), (False, "<|user|>hi<|end|>")]
)
def test_the_assistants_turn_is_opened_where_asked_for(wanted: bool, text: str) -> None:
    assert render(PLAIN, add_generation_prompt=wanted) == text


def test_a_lone_system_message_renders() -> None:
    text = render(PLAIN, [{"role": "system", "content": "be brief"}])
    assert text == "<|system|>be brief<|end|><|assistant|>"


def test_blocks_are_trimmed_as_templates_expect() -> None:
    assert render("{% if true %}\n  {{ messages[0].content }}\n  {% endif %}\nend") == "  hi\nend"


def test_loop_controls_namespaces_and_dates_work() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}"
        "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"
    )
    assert render(template, [{"role": "system", "content": "s"}, *turns("a", "b", "c")]) == "ab"
    template = (
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}"
    )
    assert render(template, turns("a", "b", "c", "d")) == "2"
    dated = render('Today: {{ strftime_now("%d %b %Y") }}|{{ messages[0].content }}')
    assert re.fullmatch(r"Today: \d{2} [A-Z][a-z]{2} \d{4}\|hi", dated)


def test_generation_marks_are_nothing() -> None:
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"


def test_json_is_written_for_models_not_for_browsers() -> None:
    tools = [{"name": "f", "doc": "<a> & 'b' \u00e9"}]
    assert json.loads(render("{{ tools | tojson }}", tools=tools)) == tools
    assert "<a> & 'b' \u00e9" in render("{{ tools | tojson }}", tools=tools)
    assert render("{{ tools | tojson(indent=2) }}", tools=[{"a": 1}]) == '[\n  {\n    "a": 1\n  }\n]'


def test_special_tokens_of_the_tokenizer_are_there_and_unknown_ones_empty() -> None:
    assert render("{{ bos_token }}|{{ eos_token }}|{{ sep_token }}") == "<s>|</s>|"


def test_further_variables_reach_the_template() -> None:
    template = (
        "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}<t>{% endif %}"
    )
    assert render(template, enable_thinking=False) == "hi<t>"
    assert render(template) == "hi"


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES - {"tools", "documents"}), "_x", "a b", ""])
def test_a_callers_variables_cannot_take_our_names(name: str) -> None:
    template = ChatTemplate(PLAIN, None)
    if name in ("messages", "add_generation_prompt", "continue_final_message", "self"):
        with pytest.raises(InvalidRequestError) as caught:
            check_template_kwargs({name: 1})
    else:
        with pytest.raises(InvalidRequestError) as caught:
            template.render(USER, **{name: 1})
    assert caught.value.param == "chat_template_kwargs"


def test_a_callers_variables_are_json() -> None:
    assert refused(PLAIN, x=object()).param == "chat_template_kwargs"
    nested: list[Any] = []
    for _ in range(50):
        nested = [nested]
    assert refused(PLAIN, x=nested).param == "chat_template_kwargs"
    assert refused(PLAIN, **{f"x{i}": i for i in range(65)}).param == "chat_template_kwargs"


def test_a_templates_refusal_is_the_callers_with_its_own_words() -> None:
    template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
    )
    error = refused(template, [*USER, *USER])
    assert error.param == "messages"
    assert "roles must alternate" in str(error)


@pytest.mark.parametrize(
    "template", ["{{ x.y.z }}", "{{ messages[0].content.foo() }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}"]
)
def test_a_failing_template_is_a_refusal_too(template: str) -> None:
    assert refused(template).param == "messages"


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ a", "{% endfor %}", "{{ a | nosuchfilter }}", "x" * 2_000_000]
)
def test_what_is_no_template_is_refused_when_it_comes(template: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(template, None)
    assert caught.value.param == "chat_template"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ messages.append({}) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ ('%s' | attr('__class__')).x }}",
        "{{ '{0.__class__.__mro__}'.format(1).x.y }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_there_is_no_way_out_of_the_sandbox(template: str) -> None:
    refused(template)


GROW = (
    "{%% set ns = namespace(x=%s) %%}{%% for i in range(64) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x }}"
)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) if 0 %}{% endfor %}" * 20,
        "{% for i in range(99) recursive %}{{ loop(range(99)) if loop.depth < 9 }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        GROW % ("'a'", "ns.x ~ ns.x"),
        GROW % ("'a'", "ns.x + ns.x"),
        GROW % ("'a'", "ns.x * 9"),
        GROW % ("'a'", "ns.x | replace('a', 'aa')"),
        GROW % ("'a'", "ns.x.replace('a', 'aa')"),
        GROW % ("'a'", "'%s%s' % (ns.x, ns.x)"),
        GROW % ("'a'", "[ns.x, ns.x] | join"),
        GROW % ("'a'", "ns.x.join([ns.x, ns.x])"),
        GROW % ("[1]", "[ns.x, ns.x]"),
        GROW % ("[1]", "ns.x + ns.x"),
        GROW % ("9", "ns.x * ns.x"),
        "{{ ([[[['a' * 4096] * 4096] * 4096] * 4096] * 4096) | tojson }}",
        "{{ 'a' * 10**9 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ 'a\nb' | indent(1000000000) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ strftime_now('%999999999d') }}",
        "{{ tools | tojson(indent=100000000) }}",
        "{{ lipsum(n=100000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{% for i in range(999) %}{{ 'x' * 99999 }}{% endfor %}",
    ],
)
def test_a_template_that_would_never_end_or_fill_the_memory_is_stopped(template: str) -> None:
    start_s = time.monotonic()
    refused(template)
    assert time.monotonic() - start_s < 12.0


def test_a_template_may_hold_long_chats() -> None:
    template = "{% for m in messages %}{% for n in messages[-20:] %}{% endfor %}[{{ m.content }}]{% endfor %}"
    assert render(template, turns(*["x"] * 4000)) == "[x]" * 4000


@pytest.mark.parametrize(
    ("template", "content_format"),
    [
        (PLAIN, ContentFormat.STRING),
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", ContentFormat.STRING),
        (
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
            ContentFormat.PARTS,
        ),
        (
            "{% set loop_messages = messages[1:] %}{% for message in loop_messages %}"
            "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part.text }}"
            "{% endfor %}"
            "{% endfor %}",
            ContentFormat.PARTS,
        ),
        (
            "{% for m in messages %}{% set content = m.content %}{% if content is string %}{{ content }}"
            "{% else %}{% for p in content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
            ContentFormat.PARTS,
        ),
        ("{% for p in messages[0]['content'] %}{{ p.text }}{% endfor %}", ContentFormat.PARTS),
        (
            "{% for m in messages %}{% for line in m.content.split('x') %}{{ line }}{% endfor %}{% endfor %}",
            ContentFormat.STRING,
        ),
        (
            "{% for t in tools or [] %}{% for p in t.content %}{{ p }}{% endfor %}{% endfor %}",
            ContentFormat.STRING,
        ),
    ],
)
def test_a_template_tells_whether_it_wants_parts(template: str, content_format: ContentFormat) -> None:
    assert ChatTemplate(template, None).content_format is content_format


def test_content_takes_the_shape_the_template_wants() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert render(PLAIN, parts, add_generation_prompt=False) == "<|user|>one\ntwo<|end|>"
    wants_parts = (
        "{% for m in messages %}{% for p in m.content %}({{ p.type }}:{{ p.text }}){% endfor %}{% endfor %}"
    )
    assert render(wants_parts, parts) == "(text:one)(text:two)"
    assert render(wants_parts, USER) == "(text:hi)"


def test_absent_content_is_no_text() -> None:
    messages = [*USER, {"role": "assistant", "content": None}, {"role": "assistant"}]
    assert render("{% for m in messages %}[{{ m.content }}]{% endfor %}", messages) == "[hi][][]"


def test_tool_calls_come_as_objects_and_an_empty_list_as_none() -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{% if m.tool_calls is defined and m.tool_calls is not none %}"
        "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{% endfor %}"
    )
    empty = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": []}]
    assert render(template, empty) == "[user]x[assistant]y"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert render(template, [message]) == '[assistant]{"x": 1}'
    assert call["function"]["arguments"] == '{"x": 1}'  # type: ignore[index]  # the caller's own stays
    call["function"] = {"name": "f", "arguments": "{broken"}
    assert "messages[0].tool_calls[0]" in str(refused(template, [message]))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "text",
        [1],
        [{}],
        [{"role": 1, "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [3]}],
        [{"role": "user", "content": "\ud800"}],
        [{"role": "user", "content": "x", "tool_calls": "y"}],
        [{"role": "user", "content": "x", "tool_calls": [{}]}],
        [{"role": "user", "content": "x"}] * 5000,
    ],
)
def test_malformed_messages_are_refused_by_name(messages: Any) -> None:
    assert refused(PLAIN, messages).param == "messages"


def test_a_final_message_is_gone_on_with() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    messages = turns("q", "The answer is ")
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(template, messages, **options) == "<user>q</><assistant>The answer is "
    wants_parts = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
    assert render(wants_parts, messages, **options) == "<q><The answer is "
    # An end that also stands earlier in the chat does not cut it there.
    assert render(template, turns("same", "same"), **options) == "<user>same</><assistant>same"


def test_going_on_needs_no_opening_and_a_template_that_shows_the_message() -> None:
    error = refused(PLAIN, turns("q", "a"), add_generation_prompt=True, continue_final_message=True)
    assert error.param == "continue_final_message"
    error = refused(
        "{{ messages[0].content }}", turns("q", "a"), add_generation_prompt=False, continue_final_message=True
    )
    assert error.param == "continue_final_message"


def test_the_configured_template_comes_before_the_checkpoints(tmp_path: Path) -> None:
    def configured(path: str | None, own: str | None) -> EngineConfig:
        config = make_config(chat_template=own)
        return dataclasses.replace(config, model=dataclasses.replace(config.model, chat_template=path))

    file = tmp_path / "template.jinja"
    file.write_text("file", encoding="utf-8")
    from_file = build_chat_template(configured(str(file), "own"), None)
    assert from_file is not None
    assert from_file.render(USER) == "file"
    own = build_chat_template(configured(None, "own"), None)
    assert own is not None
    assert own.render(USER) == "own"
    assert build_chat_template(configured(None, None), None) is None
    for path, text in ((str(tmp_path / "none"), None), (str(file), "{% if %}")):
        if text is not None:
            file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            build_chat_template(configured(path, None), None)
        assert caught.value.key == "model.chat_template"
