"""Files of configurations: what is read, and what is said of those that cannot be."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hpcckpt.train.config.hjson_decode import Pairs
from hpcckpt.train.config.read import parse, read
from hpcckpt.train.config_errors import TrainConfigError

pytestmark = pytest.mark.one_case

ONE = '[{"model": {"m.X": {}}}]'


def written(text: str) -> Any:
    document = parse(text, "c.hjson")
    assert document.problems == ()
    return document.raw


def complaint(text: str) -> str:
    """Return what is said of a file with this text, whether it can be read or not."""
    try:
        return "\n".join(map(str, parse(text, "c.hjson").problems))
    except TrainConfigError as error:
        return str(error)


# -- the samples -----------------------------------------------------------------------------------


def test_the_simple_sample_is_read(seeds: Path) -> None:
    assert read(seeds / "simple.json").raw == [
        {
            "datasets": {"ktf.datasets.digits.affnist.from_tfrecord": {"affnist_tfrecord_dir": "data/affnist"}},
            "model": {"ktf.models.OneHeadNet": {"num_outputs": 10}},
            "loss": {"tf.keras.losses.SparseCategoricalCrossentropy": {"from_logits": True}},
        }
    ]


def test_the_complex_sample_is_read_with_its_missing_comma(seeds: Path) -> None:
    first, second = read(seeds / "complex.json").raw
    loop = first["train_loop"]["ktf.train.KerasTrainLoop"]
    assert list(loop) == ["num_epochs", "callbacks", "freeze_submodels"]
    assert loop["freeze_submodels"] == ["base_model"]
    assert first["optimizer"] == {"tf.keras.optimizers.Adam": {"learning_rate": 0.0005}}
    assert first["model"]["ktf.models.OneHeadNet"]["base_model"] == {
        "tf.keras.applications.MobileNetV2": {"include_top": False, "input_shape": [40, 40, 3], "pooling": "avg"}
    }
    assert list(second) == ["optimizer", "train_loop"]
    assert second["train_loop"]["ktf.train.KerasTrainLoop"]["num_valid_steps"] is None


def test_comments_of_all_three_styles() -> None:
    assert written('# a\n[ // b\n /* c\n c */ { "seed": 1 # d\n "loss": "mse" /* e */ } ]') == [
        {"seed": 1, "loss": "mse"}
    ]


# -- values ----------------------------------------------------------------------------------------


def test_a_number_stays_what_it_is_written_as() -> None:
    found = written('[{"a": 1, "b": 1.0, "c": 0.0, "d": 1e3, "e": -2, "f": 1e-4}]')[0]
    assert found == {"a": 1, "b": 1.0, "c": 0.0, "d": 1000.0, "e": -2, "f": 1e-4}
    assert [type(value) for value in found.values()] == [int, float, float, float, int, float]


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS.filter(lambda text: text not in {"True", "False", "None"}),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner),
    max_leaves=20,
)


@given(st.dictionaries(_TEXTS, _VALUES, min_size=1))
def test_json_is_read_as_json(cycle: dict[str, Any]) -> None:
    found = written(json.dumps([cycle]))
    assert found == json.loads(json.dumps([cycle]))
    assert json.dumps(found) == json.dumps([cycle])  # 1 is not 1.0, and not true


def test_a_mapping_alone_is_one_cycle() -> None:
    assert written('{"seed": 1}') == [{"seed": 1}]
    assert written("seed: 1\nloss: mse\n") == [{"seed": 1, "loss": "mse"}]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(b"\xef\xbb\xbf" + ONE.encode())
    assert read(tmp_path / "c.json").raw == json.loads(ONE)


def test_a_text_of_several_lines_may_begin_in_the_first_line() -> None:
    assert written("loss: '''a\n b'''\n") == [{"loss": "a\nb"}]


def test_a_dash_is_the_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(ONE.encode())

    monkeypatch.setattr("sys.stdin", Input())
    document = read("-")
    assert (document.raw, document.source) == (json.loads(ONE), "standard input")


def test_a_closed_standard_input_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(TrainConfigError, match="standard input: is closed"):
        read("-")


# -- what is not meant -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "remedy"),
    [
        ('[{"a": 1, "b": {"c": 1, "c": 2}}]', "[0].b.c: is there twice", "keep one"),
        ('[{"a": True,\n"b": 1}]', "[0].a: is the text 'True,'", "write true"),
        ('[{"a": None\n}]', "[0].a: is the text 'None'", "write null"),
        ('[{"a": "False"}]', "[0].a: is the text 'False'", "write false"),
        ('[{"a": mse,\n"b": 1}]', "[0].a: without quotes", "put quotes around it"),
        ('[{"a": mse # of course\n}]', "[0].a: without quotes the comment", "put quotes around it"),
        ('[{"a": [.5\n]}]', "[0].a[0]: is the text '.5'", "write a number"),
        ('[{"a": 1e999}]', "[0].a: inf is no number", "write a finite one"),
    ],
)
def test_what_hjson_takes_and_nobody_means(text: str, where: str, remedy: str) -> None:
    found = complaint(text)
    assert found.startswith(where)
    assert remedy in found


@pytest.mark.parametrize("word", ["None", "True", "False"])
def test_a_name_in_quotes_may_be_a_word_of_pythons(word: str) -> None:
    document = parse(f'[{{"model": {{"my.Net": {{"name": "{word}"}}}}}}]', "c.hjson")
    assert (document.problems, document.raw[0]["model"]["my.Net"]["name"]) == ((), word)
    assert parse(f'[{{"name": {word}\n}}]', "c.hjson").problems


def test_many_keys_are_read_in_little_time() -> None:
    keys = [(f"key{number}", 1) for number in range(40_000)]
    began = time.process_time()
    assert Pairs([*keys, keys[7], keys[3]]).repeated == ["key3", "key7"]
    assert time.process_time() - began < 10


def test_text_without_quotes_is_fine_where_it_is_meant() -> None:
    assert written("[{\n loss: mse\n model: a b/c#d\n}]") == [{"loss": "mse", "model": "a b/c#d"}]


# -- syntax ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[\n  {"a": 1,\n   "b" 2}\n]', "c.hjson:3:"),
        ('[\n  {"a": "x}\n]', "c.hjson:2: a text is not closed where the line ends"),
        ('[{"a": "x\ty"}]'.replace("\\t", "\t"), "c.hjson:1: the character '\\t' is in a text"),
        ('[{"a": 1}', "c.hjson:1:"),
        ('[{"a": 1}]\n]', "c.hjson:2:1: Extra data"),
        ('\n\n[{"a": 1} /* b', "c.hjson:3: what begins here is not closed"),
        ("a: '''b\nc", "c.hjson:2:2: Bad multiline string"),
        ("a: '''", "c.hjson:1: what begins here is not closed"),
        ('[{"a": "\\q"}]', "c.hjson:1:10: Invalid \\X escape sequence 'q'"),
        ("[" * 100_000, "c.hjson: lies deeper than can be read"),
        (f'[{{"a": {"9" * 5000}}}]', "c.hjson: holds a number that cannot be read"),
    ],
)
def test_a_wrong_syntax_is_found_by_line_and_column(text: str, where: str) -> None:
    assert complaint(text).startswith(where)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '[{\n"metrics": [accuracy]\n}]',
            "c.hjson:2: without quotes the text runs to the end of its line: 'accuracy]'; put",
        ),
        (
            '[{\n"a": {"b": True}}]',
            "c.hjson:2: without quotes the text runs to the end of its line: 'True}}]'; write true",
        ),
        (
            '[{\n"a": {"b": None},\n}]',
            "c.hjson:2: without quotes the text runs to the end of its line: 'None},'; write null",
        ),
    ],
)
def test_a_text_that_swallowed_a_bracket_is_named(text: str, says: str) -> None:
    assert complaint(text).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "is empty"), ("  \n# only a comment\n", "is empty"), ("[]", "is empty"), ("{}", "is empty"),
     ("null", "is empty"), ("3", "is a number"), ('"text"', "is a text")],
)  # fmt: skip
def test_what_holds_no_cycle_is_refused(text: str, says: str) -> None:
    assert complaint(text).startswith(f"c.hjson: {says}; a configuration is a list of train cycles")


# -- files -----------------------------------------------------------------------------------------


def refusal(path: Path | str) -> str:
    with pytest.raises(TrainConfigError) as caught:
        read(path)
    return str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "simple.hjson").write_text(ONE, encoding="utf-8")
    assert refusal(tmp_path / "simpel.hjson") == (
        f"{tmp_path}/simpel.hjson: there is no such file; did you mean '{tmp_path}/simple.hjson'?"
    )
    assert refusal(tmp_path / "no" / "c.json").endswith(f"there is no directory {tmp_path}/no either")


def test_a_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: is a directory; give a file in it"


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(b"[\n{\n\xff")
    assert refusal(tmp_path / "c.json") == f"{tmp_path}/c.json:3: the byte 0xff is not UTF-8; save the file as UTF-8"


def test_a_file_that_is_no_configuration_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(bytes(1 << 21))
    assert "more than 1 MiB" in refusal(tmp_path / "model.bin")


def test_a_name_that_no_file_can_have() -> None:
    assert "cannot be read" in refusal("c\0.json")


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_whatever_a_file_holds_is_read_or_refused(text: str) -> None:
    refused, document = None, None
    try:
        document = parse(text, "c.hjson")
    except TrainConfigError as error:
        refused = error
    if document is None:
        assert refused is not None
        assert refused.problems
        assert all(problem.remedy for problem in refused.problems)
    else:
        assert isinstance(document.raw, list)
        assert json.dumps(document.raw)


def test_a_program_without_hjson_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hjson", None)
    with pytest.raises(TrainConfigError, match=r"pip install 'hpcckpt\[train\]'"):
        parse(ONE, "c.hjson")
