import pytest

from headway.adapters.tokenizer.chat_template import ChatTemplate, TemplateError

HI = [{"role": "user", "content": "hi"}]
CHATML = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}> {% endif %}"
)


def test_renders_messages_with_the_models_tokens() -> None:
    template = ChatTemplate(CHATML, {"eos_token": "</s>"})
    assert template.render(HI) == "[user] hi</s>\n> "
    assert template.render(HI, add_generation_prompt=False) == "[user] hi</s>\n"


def test_a_final_message_can_be_continued() -> None:
    template = ChatTemplate(CHATML, {"eos_token": "</s>"})
    messages = [*HI, {"role": "assistant", "content": "hi, I "}]
    text = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "[user] hi</s>\n[assistant] hi, I"


def test_extra_names_reach_the_template() -> None:
    assert ChatTemplate("{{ thinking }}", {}).render(HI, extra={"thinking": False}) == "False"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system') }}",
        "{{ messages[5].content }}",
        "{{ 'a' + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages|nofilter }}",
    ],
)
def test_what_a_template_cannot_do_is_an_answer(source: str) -> None:
    # SPEC M5
    with pytest.raises(TemplateError):
        ChatTemplate(source, {}).render(HI)


def test_a_broken_template_is_refused_at_load() -> None:
    with pytest.raises(TemplateError, match="line 1"):
        ChatTemplate("{% if %}", {})


def test_json_is_not_escaped_for_html() -> None:
    assert ChatTemplate("{{ messages[0] | tojson }}", {}).render([{"a": "<é>"}]) == '{"a": "<é>"}'
