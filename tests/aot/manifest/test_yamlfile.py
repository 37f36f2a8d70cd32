import os

import pytest

from aot.manifest.yamlfile import ManifestError, read_yaml


def read(tmp_path, text: str | bytes):
    path = tmp_path / "m.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


def fault(tmp_path, text: str | bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        read(tmp_path, text)
    (message,) = caught.value.messages
    assert str(caught.value) == message
    return message.replace(str(tmp_path / "m.yaml"), "m.yaml")


def test_data_is_plain_and_every_part_has_its_place(tmp_path):
    file = read(tmp_path, "a: [1, 'two', 3.5]\nb:\n  c: true\n  d: {e: null}\n")
    assert file.data == {"a": [1, "two", 3.5], "b": {"c": True, "d": {"e": None}}}
    kinds = [type(item) for item in file.data["a"]]
    assert kinds == [int, str, float]
    assert type(file.data) is type(file.data["b"]) is dict
    places = {("a",): "1:1", ("a", 0): "1:5", ("a", 1): "1:8", ("b", "c"): "3:3", ("b", "d", "e"): "4:7"}
    assert {key: file.locate(key) for key in places} == {key: f"{file.path}:{at}" for key, at in places.items()}


def test_the_place_of_what_is_not_there_is_that_of_its_deepest_part(tmp_path):
    file = read(tmp_path, "a:\n  b: {c: 1}\n")
    assert file.locate(("a", "b", "x", "y")) == f"{file.path}:2:3"
    assert file.locate(("z",)) == file.locate(()) == f"{file.path}:1:1"
    assert file.error(("a", "b"), "is wrong").messages == (f"{file.path}:2:3: is wrong",)


def test_yaml_12_scalars(tmp_path):
    """In YAML 1.2 only true and false are booleans: `no` and `on` are text, as a person means them."""
    assert read(tmp_path, "[yes, no, on, off, true, 0o17, 0x1f, 1_000]").data[:5] == ["yes", "no", "on", "off", True]


def test_anchors_keep_types(tmp_path):
    data = read(tmp_path, "a: &t true\nb: *t\nc: &n 3\nd: *n\n").data
    assert data == {"a": True, "b": True, "c": 3, "d": 3}
    assert [type(value) for value in data.values()] == [bool, bool, int, int]


def test_merged_keys_are_where_the_mapping_is(tmp_path):
    file = read(tmp_path, "base: &b {x: 1, y: 2}\nnext:\n  <<: *b\n  y: 3\n")
    assert file.data["next"] == {"x": 1, "y": 3}
    assert file.locate(("next", "y")) == f"{file.path}:4:3"
    assert file.locate(("next", "x")) == f"{file.path}:3:3"


def test_what_is_merged_in_comes_first(tmp_path):
    file = read(tmp_path, "base: &b {x: 1, y: 2}\nnext:\n  <<: *b\n  z: 3\n  y: 4\n")
    assert list(file.data["next"].items()) == [("x", 1), ("y", 4), ("z", 3)]


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    assert read(tmp_path, b"\xef\xbb\xbfa: 1\n").data == {"a": 1}


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: 1\nb: 2\na: 3\n", "m.yaml:3:1: duplicate key 'a'"),
        ("a: [1, 2\n", "m.yaml:2:1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a:\n\t- b\n", "m.yaml:2:1: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: *b\n", "m.yaml:1:4: not valid YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 2\n", "m.yaml:2:1: not valid YAML: but found another document"),
        ("1: x\n", "m.yaml:1:1: a key must be text (given: 1)"),
        ("a: {true: x}\n", "m.yaml:1:5: a key must be text (given: True)"),
        ("? [a, b]\n: c\n", "m.yaml:1:3: a key must be text (given: a list)"),
        ("&a [*a]\n", "m.yaml:1:1: an alias stands for something that contains it"),
        (b"a: \xff\n", "m.yaml: cannot be read: it is not UTF-8 text"),
    ],
)
def test_faults(tmp_path, text, message):
    assert fault(tmp_path, text) == message


def test_a_control_character_is_one_line(tmp_path):
    message = fault(tmp_path, "a: \x01\n")
    assert message.startswith("m.yaml: not valid YAML: unacceptable character #x0001")
    assert "\n" not in message


def test_files_that_cannot_be_read(tmp_path):
    for path, reason in ((tmp_path / "none.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ManifestError) as caught:
            read_yaml(path)
        assert caught.value.messages == (f"{path}: cannot be read: {reason}",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_without_permission(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("a: 1\n")
    path.chmod(0)
    with pytest.raises(ManifestError, match=r"m\.yaml: cannot be read: Permission denied"):
        read_yaml(path)
