"""Reasoning and tool text of language models is not read, wherever the stream is cut."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case
from tests.fakes.reading import read, read_cut_anywhere, spoken

from tts_worker.text.control_tags import ControlTags
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import DropReasoning

PLAIN = TextOptions(markdown=False)
CALL = '{"name": "get_weather", "arguments": {"city": "Paris }"}}'

HIDDEN = [
    "<think>Let me see.\n\n- a plan: 5 < 6 and ```code</think>",
    "<THINK >Let me see.</Think>",
    '<think duration="3">x</think>',
    "<thinking>x</thinking>",
    "<thinking>x</thinking>",
    "<seed:think>x</seed:think>",
    "<thought>x</thought>",
    "<reasoning>x</reasoning>",
    "<reflection>x</reflection>",
    "<scratchpad>x</scratchpad>",
    "<REASONING_SCRATCHPAD>x</REASONING_SCRATCHPAD>",
    "<think>a <think>b</think> c</think>",
    "<think>the `<think>` tag</think>",
    '<details type="reasoning" done="true" duration="3">\n<summary>Thought</summary>\n> x\n</details>',
    '<details id="1" type="tool_calls" name="f" arguments="&quot;{}&quot;">\n<summary>Done</summary>\n</details>',
    f"<tool_call>\n{CALL}\n</tool_call>",
    f"<tool_calls>[{CALL}]</tool_calls>",
    f"<TOOLCALL>[{CALL}]</TOOLCALL>",
    "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value></tool_call>",
    f"<function_call>{CALL}</function_call>",
    '<function_calls><invoke name="f"><parameter name="a">b</parameter></invoke></function_calls>',
    '<invoke name="f">\n<parameter name="a">b</parameter>\n</invoke>',
    "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
    "<function=f><parameter=a>b</parameter></function></tool_call>",
    '<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>',
    "<tools>[]</tools>",
    "<tool_response>x</tool_response>",
    "<tool_result>x</tool_result>",
    "<function_results>x</function_results>",
    f"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{CALL}"
    "<|tool_call_end|><|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "<|START_THINKING|>x<|END_THINKING|>",
    "<|START_ACTION|>[]<|END_ACTION|>",
    "<|channel>thought\nx<channel|>",
    "<|tool_call>call:f{a:1}<tool_call|>",
    f"<|tool_call|>[{CALL}]<|/tool_call|>",
    f"<|python_tag|>{CALL}<|eom_id|>",
    "[THINK]x[/THINK]",
    "[TOOL_RESULTS]x[/TOOL_RESULTS]",
    f"[TOOL_CALLS] [{CALL}]",
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    '[TOOL_CALLS]a[CALL_ID]x1[ARGS]{"city": "\\"}"}[TOOL_CALLS]b[ARGS]{}',
    "<|channel|>analysis<|message|>We need to answer.<|end|>",
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    '<|start|>functions.f to=assistant<|channel|>commentary<|message|>{"a": 1}<|end|>',
    "<|im_start|>assistant\n",
    "<|start_header_id|>assistant<|end_header_id|>",
]


@pytest.mark.parametrize("options", [TextOptions(), PLAIN], ids=["markdown", "plain"])
@pytest.mark.parametrize("hidden", HIDDEN)
def test_hidden_text_becomes_a_space(hidden: str, options: TextOptions) -> None:
    assert spoken(f"well{hidden}then", options) == "well then"
    assert spoken(f"Well, {hidden} then", options) == "Well, then"


@each_case("hidden", HIDDEN)
def test_hidden_text_before_a_line_leaves_its_markdown(hidden: str) -> None:
    assert spoken(f"{hidden}\n\n# Title\nHello") == "Title|Hello"
    assert spoken(f"{hidden}- one\n- two") == "one|two"


@each_case(
    ("text", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>final<|message|>It is four."
            "<|return|>",
            "It is four.",
        ),
        ("<|start|>assistant<|message|>Hello.<|end|>", "Hello."),
        ("<|channel|>final <|constrain|>text<|message|>Hello.", "Hello."),
        ("I was told.\n</think>\nFour.", "I was told.|Four."),
        ("told</think>four", "told four"),
        ("told[/THINK]four</tool_call>five<channel|>six<|im_end|>", "told four five six"),
        ("你好<think>x</think>世界", "你好 世界"),
        ("<think/>Hello<thinking />", "Hello"),
        ("<answer>Four.</answer>", "Four."),
        ("Hello <think", "Hello <think"),
        ("I <think about it> and 5 <think> x", "I <think about it> and 5"),
        ("[THINKER] and [TOOL_CALLS] there is none", "[THINKER] and there is none"),
    ],
)
def test_what_remains_is_read(text: str, expected: str) -> None:
    assert spoken(text) == expected


@pytest.mark.parametrize("options", [TextOptions(), PLAIN], ids=["markdown", "plain"])
def test_tags_in_code_spans_are_text(options: TextOptions) -> None:
    assert "think" in spoken("the `<think>` tag and `</think>` end it", options)
    assert "end it" in spoken("the `<think>` tag and `</think>` end it", options)


@each_case(
    "call",
    [
        CALL,
        f"[{CALL}, {CALL}]",
        '{\n  "name": "f",\n  "arguments": {\n    "a": [1, 2]\n  }\n}',
        '{"name":"f","parameters":{}}',
        '{"type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}',
        '{"tool_calls": [{"id": "1"}]}',
        '{"arguments": {"a": "b"}, "name": "f"}',
        '{"tool": "f", "args": {}}',
        '{"action": "f", "action_input": "x"}',
        '{"id": "call_1", "type": "function", "name": "f", "input": {}}',
    ],
)
def test_call_as_json_on_a_line_is_not_read(call: str) -> None:
    for options in (TextOptions(), PLAIN):
        assert spoken(f"I look it up.\n{call}\nDone.", options) == "I look it up.|Done."
        assert spoken(f"{call}", options) == ""
    assert spoken(f"I look it up.\n```json\n{call}\n```\nDone.") == "I look it up.|Done."


@pytest.mark.parametrize(
    "text", ['{"name": "Ann", "age": 5}', '{"a": 1}', "{x} is a set", "[a, b] stay", '{"name"', '["name", "x"]']
)
def test_other_braces_are_text(text: str) -> None:
    for options in (TextOptions(), PLAIN):
        assert spoken(f"So:\n{text}\nDone.", options) == f"So:|{text}|Done."


def test_unclosed_json_call_ends_with_a_blank_line() -> None:
    assert spoken('{"name": "f", "arguments": {"a": 1}\n\nIt is warm.') == "It is warm."


def test_call_within_a_line_is_text() -> None:
    assert CALL[2:6] in spoken(f"so {CALL}")


@pytest.mark.parametrize("hidden", ["<think>", "<tool_call>", "<|channel|>analysis<|message|>", "[THINK]"])
def test_unclosed_block_hides_the_rest_of_the_utterance(hidden: str, caplog: pytest.LogCaptureFixture) -> None:
    text = f"Hello. {hidden}" + "Let me think. " * 400
    with caplog.at_level(logging.WARNING):
        segments = read(text, size=4)
    assert [segment.text for segment in segments] == ["Hello."]
    (record,) = caplog.records
    assert f"{len(text) - 7} characters" in record.getMessage()
    assert "Let me" not in record.getMessage()


def test_flush_does_not_end_a_block() -> None:
    pipeline = TextPipeline()
    assert [segment.text for segment in pipeline.feed("Hi. <think>x") + pipeline.flush()] == ["Hi."]
    assert pipeline.feed("y. And so on. ") == []
    assert [segment.text for segment in pipeline.feed("</think>Yes.") + pipeline.end()] == ["Yes."]


@pytest.mark.parametrize("hidden", HIDDEN[:1])
def test_setting_reads_reasoning(hidden: str) -> None:
    options = TextOptions(drop_reasoning=False)
    assert spoken(hidden, options).startswith("Let me see.")
    assert spoken(hidden, replace(options, markdown=False)).startswith("<think>Let me see.")


@pytest.mark.parametrize("markdown", [True, False])
@pytest.mark.parametrize(
    "closing", ["</think>", "</thinking>", "</THINK >", "</seed:think>", "[/THINK]", "<|END_THINKING|>"]
)
def test_reasoning_from_start_ends_with_its_closing(closing: str, markdown: bool) -> None:
    options = TextOptions(drop_reasoning="from_start", markdown=markdown)
    for beginning in ("", "<think>", "Let me see.\n\n- use </tool_call>, `x`"):
        text = f"{beginning} a plan: 5 < 6. {closing}\nHello. <think>x</think>Bye."
        assert [segment.text for segment in read_cut_anywhere(text, options)] == ["Hello.", "Bye."]


def test_markdown_begins_after_reasoning_from_start() -> None:
    options = TextOptions(drop_reasoning="from_start")
    assert spoken("I think.</think>## Title\n\n- one\n- two", options) == "Title|one|two"


def test_answer_without_reasoning_from_start_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    options = TextOptions(drop_reasoning="from_start")
    with caplog.at_level(logging.WARNING):
        assert read("Hello there.", options) == []
        assert "12 characters" in caplog.text
        caplog.clear()
        assert read("", options) == []
        assert not caplog.records


def test_control_tags_work_beside_blocks() -> None:
    for markdown in (True, False):
        options = TextOptions(control_tags=ControlTags(("[laughter]", "<strong>", "</strong>")), markdown=markdown)
        text = "a [laughter]<think>[laughter]</think> b <strong>c</strong>"
        units = [s.phonemes for segment in read_cut_anywhere(text, options) for s in segment.spans if s.phonemes]
        assert units == ["[laughter]", "<strong>", "</strong>"]


FRAGMENTS = st.sampled_from(
    (
        *("<think>", "</think>", "<thi", "nk>", "<think", ">", "<", "</", "<|", "|>", "[", "]", "{", "}", '"', "\\"),
        *("<|channel|>", "analysis", "final", "<|message|>", "<|end|>", "<|start|>", "assistant", "<|im_start|>"),
        *("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", '{"name": "f", "arguments": ', '{"name"', '": ', "```\n"),
        *("<tool_call>", "</tool_call>", "<function=f>", "</function>", '<details type="reasoning">', "</details>"),
        *("<|x_begin|>", "<|tool_begin|>", "<|tool_end|>", "<|think>", "<think|>", "`", "\n", "\n\n", " ", ". "),
        *("word", "Hello", ", ", "**", "<b>", "https://x.com", "👋", "\u200b", "- ", "# "),
    )
)


DROPS: st.SearchStrategy[DropReasoning] = st.sampled_from((True, "from_start"))


@settings(deadline=None, max_examples=300)
@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.integers(1, 9), st.booleans(), st.booleans(), DROPS)
def test_blocks_do_not_depend_on_the_split(
    text: str, size: int, markdown: bool, by_word: bool, drop: DropReasoning
) -> None:
    options = TextOptions(markdown=markdown, by_word=by_word, drop_reasoning=drop)
    whole = read(text, options)
    assert read(text, options, size) == whole
    assert [s.start for s in whole] == [0, *(s.end for s in whole)][: len(whole)]
