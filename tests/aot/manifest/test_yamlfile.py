import os
from pathlib import Path

import pytest

from aot.manifest.yamlfile import ManifestError, YamlFile, read_yaml


def read(folder: Path, text: str | bytes) -> YamlFile:
    path = folder / "m.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


def test_data_is_plain_and_every_part_has_its_place(tmp_path: Path):
    file = read(tmp_path, "\ufeffa: [1, 'two', 3.5]\nb:\n  c: &t true\n  d: {e: null, f: *t}\n")
    assert file.data == {"a": [1, "two", 3.5], "b": {"c": True, "d": {"e": None, "f": True}}}
    kinds = [type(item) for item in (*file.data["a"], file.data["b"]["d"]["f"], file.data, file.data["b"])]
    assert kinds == [int, str, float, bool, dict, dict]
    places = {("a",): "1:1", ("a", 0): "1:5", ("a", 1): "1:8", ("b", "c"): "3:3", ("b", "d", "e"): "4:7"}
    places |= {("b", "d", "x", "y"): "4:3", ("z",): "1:1", (): "1:1"}  # of the deepest part that is there
    assert {key: file.locate(key) for key in places} == {key: f"{file.path}:{at}" for key, at in places.items()}
    assert file.error(("b", "d"), "is wrong").messages == (f"{file.path}:4:3: is wrong",)


def test_yaml_12_scalars(tmp_path: Path):
    """In YAML 1.2 only true and false are booleans: `no` and `on` are text, as a person means them."""
    assert read(tmp_path, "[yes, no, on, off, true, 0o17]").data == ["yes", "no", "on", "off", True, 15]


def test_merged_keys_come_first_and_are_where_the_mapping_is(tmp_path: Path):
    file = read(tmp_path, "base: &b {x: 1, y: 2}\nnext:\n  <<: *b\n  z: 3\n  y: 4\n")
    assert list(file.data["next"].items()) == [("x", 1), ("y", 4), ("z", 3)]
    assert [file.locate(("next", key)) for key in "xyz"] == [f"{file.path}:{at}" for at in ("3:3", "5:3", "4:3")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", ":3:1: duplicate key 'a'"),
        ("a: &x 1\nb: 2\nc: &x 3\n", ":3: duplicate anchor 'x'; the first is in line 1"),
        ("a: [1, 2\n", ":2:1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\n---\nb: 2\n", ":2:1: not valid YAML: but found another document"),
        ("a: \x01\n", ": not valid YAML: unacceptable character #x0001"),
        ("1: x\n", ":1:1: a key must be text (given: 1)"),
        ("a: {true: x}\n", ":1:5: a key must be text (given: True)"),
        ("? [a, b]\n: c\n", ":1:3: a key must be text (given: a list)"),
        ("&a [*a]\n", ":1:1: an alias refers to a value that contains it"),
        (b"a: \xff\n", ": cannot be read: it is not UTF-8 text"),
    ],
)
def test_faults(tmp_path: Path, text: str | bytes, message: str):
    with pytest.raises(ManifestError) as caught:
        read(tmp_path, text)
    (found,) = caught.value.messages
    assert str(caught.value) == found and "\n" not in found
    assert found.startswith(f"{tmp_path / 'm.yaml'}{message}")


def test_files_that_cannot_be_read(tmp_path: Path):
    locked = tmp_path / "locked.yaml"
    locked.touch(0)
    reasons = {tmp_path / "none.yaml": "No such file or directory", tmp_path: "Is a directory"}
    if os.geteuid():  # root may read anything
        reasons[locked] = "Permission denied"
    for path, reason in reasons.items():
        with pytest.raises(ManifestError) as caught:
            read_yaml(path)
        assert caught.value.messages == (f"{path}: cannot be read: {reason}",)
