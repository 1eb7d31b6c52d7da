import pytest
from pydantic import Field

from raybench.core.documents import (
    Document,
    apply_settings,
    parse_yaml,
    read_mapping,
    to_yaml,
    validate,
)
from raybench.core.errors import UserError


class Inner(Document):
    width: int = 1


class Outer(Document):
    name: str
    inner: Inner = Inner()
    rates: list[float] = []
    count: int = Field(default=1, gt=0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E4", 1e4),
        ("-3e2", -300.0),
        ("+3e2", 300.0),
        (".5e3", 500.0),
        ("1.e5", 1e5),
        ("1.0e-4", 1e-4),
        ("0.1", 0.1),
    ],
)
def test_every_way_to_write_a_float_is_a_number(text, value):
    found = parse_yaml(f"a: {text}", "file")["a"]
    assert isinstance(found, float)
    assert found == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("1e", "1e"),
        ("e4", "e4"),
        ("'1e-4'", "1e-4"),
        ("1e4x", "1e4x"),
        ("v1e4", "v1e4"),
        ("~", None),
        ("true", True),
    ],
)
def test_what_is_no_float_is_left_alone(text, value):
    found = parse_yaml(f"a: {text}", "file")["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3),
        ("a: 1\n\tb: 2\n", 2),
        ("a: 1\nb: 2: 3\n", 2),
        ("a: *missing\n", 1),
        ("a: !!python/object:os.system x\n", 1),
        ("a: 1\n? [x]\n: 2\n", 2),
    ],
)
def test_a_syntax_error_names_file_and_line_in_one_line(text, line):
    with pytest.raises(UserError, match=rf"^space\.yaml, line {line}: not valid YAML") as refusal:
        parse_yaml(text, "space.yaml")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["2020-13-45", "!!int few", "!!float few"])
def test_values_that_yaml_itself_cannot_build_are_the_users_mistake(text):
    try:
        parse_yaml(f"a: {text}", "space.yaml")
    except UserError:
        return
    pytest.fail("accepted")


def test_a_control_character_is_refused_in_one_line():
    with pytest.raises(UserError) as refusal:
        parse_yaml("a: \x07", "space.yaml")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [("- a\n- b\n", "a list"), ("", "nothing"), ("just words", "text"), ("12", "int")],
)
def test_a_file_must_hold_keys(tmp_path, text, found):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"space\.yaml: must hold .* found {found}\.$"):
        read_mapping(path)


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.yaml: cannot be read .No such file"):
        read_mapping(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match=r"cannot be read .Is a directory"):
        read_mapping(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match=r"cannot be read .not a text file"):
        read_mapping(binary)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"nam": "x"}, "f: the key 'name' is required."),
        ({"name": "x", "inne": 1}, "f: unknown key 'inne'; did you mean 'inner'?"),
        ({"name": "x", "inner": {"widht": 1}}, "unknown key 'inner.widht'; did you mean 'width'?"),
        ({"name": "x", "inner": {"q": 1}}, "unknown key 'inner.q'; allowed are width."),
        ({"name": "x", "count": 0}, "f: 'count': input should be greater than 0 (found 0)."),
        ({"name": "x", "rates": [1.0, "a"]}, "'rates.1': input should be a valid number"),
        ({"name": "x", "inner": 3}, "'inner': "),
        ({"name": "x", 7: 1}, "'7"),
    ],
)
def test_the_first_problem_is_one_sentence(content, sentence):
    with pytest.raises(UserError) as refusal:
        validate(Outer, content, "f")
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_yaml_keeps_the_order_and_reads_back():
    content = {"b": 1e-5, "a": [1, 2], "c": {"z": None, "y": "1e", "x": "ü: #", "w": "1.5"}}
    assert parse_yaml(to_yaml(content), "text") == content
    assert list(parse_yaml(to_yaml(content), "text")) == ["b", "a", "c"]


def test_text_that_looks_like_a_float_is_written_in_quotes():
    assert parse_yaml(to_yaml({"workload": "1e4"}), "text") == {"workload": "1e4"}


@pytest.mark.parametrize(
    ("settings", "result"),
    [
        (["x=2"], {"x": 2, "d": {"k": 1}}),
        (["x=1e-4"], {"x": 1e-4, "d": {"k": 1}}),
        (["d.k=[torch]"], {"x": 1, "d": {"k": ["torch"]}}),
        (["d.new.deep=true"], {"x": 1, "d": {"k": 1, "new": {"deep": True}}}),
        ([" x = hello "], {"x": "hello", "d": {"k": 1}}),
        (["x="], {"x": None, "d": {"k": 1}}),
        (["x=a=b"], {"x": "a=b", "d": {"k": 1}}),
        (["x=2", "x=3"], {"x": 3, "d": {"k": 1}}),
        (["d={k: 5}"], {"x": 1, "d": {"k": 5}}),
    ],
)
def test_settings_change_a_copy(settings, result):
    content = {"x": 1, "d": {"k": 1}}
    assert apply_settings(content, settings) == result
    assert content == {"x": 1, "d": {"k": 1}}, "the given content was changed"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("x.y=3", "'x' holds no keys of its own"),
        ("d.k.z=3", "'k' holds no keys of its own"),
        ("x=[1", "--set x, line 1: not valid YAML"),
        ("x={a: 1", "--set x, line 1: not valid YAML"),
    ],
)
def test_a_bad_setting_is_refused_by_name(setting, message):
    with pytest.raises(UserError, match="--set") as refusal:
        apply_settings({"x": 1, "d": {"k": 1}}, [setting])
    assert message in str(refusal.value)
