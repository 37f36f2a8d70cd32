import json
from pathlib import Path

import pytest

from aot.manifest.json_schema import MODELS, json_schema, schema_file
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from tests.support.building.projects import EVERYTHING, SCALE, edit, position, write_project

ROOT = Path(__file__).parents[3]
WHERE = "ops.scale"
NO_NAME = "is no name: letters, digits and single underscores between them, a letter first"


def faults(tmp_path, text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_manifest(write_project(tmp_path, text))
    return list(caught.value.messages)


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_schemas_are_up_to_date(name):
    assert schema_file(name).read_text() == json_schema(name), "run `python -m aot.manifest.json_schema`"


@pytest.mark.parametrize("path", sorted((ROOT / "manifests").rglob("*.yaml")), ids=lambda path: path.name)
def test_our_files_name_their_schema(path):
    first, _, schema = path.read_text().partition("\n")[0].partition(" $schema=")
    assert first == "# yaml-language-server:"
    assert (path.parent / schema).resolve() == schema_file("tuning" if path.parent.name == "tuning" else "manifest")


def test_the_json_schema_describes_what_is_checked():
    schema = json.loads(json_schema("manifest"))
    op = schema["$defs"]["OpSpec"]
    assert schema["required"] == ["bundle"] and op["required"] == ["tensors", "launches"]
    assert schema["$id"] == "urn:aotbuild:manifest"
    assert op["additionalProperties"] is schema["additionalProperties"] is False
    assert "bfloat16" in schema["$defs"]["WorkspaceSpec"]["properties"]["dtype"]["enum"]
    assert schema["$defs"]["TensorSpec"]["properties"]["shape"]["description"].startswith("Dims:")


@pytest.mark.parametrize("path", sorted((ROOT / "manifests").glob("*.yaml")), ids=lambda path: path.name)
def test_our_manifests_are_valid(path):
    manifest = load_manifest(path)
    assert manifest.root == ROOT
    assert manifest.spec.bundle == path.stem


FLAG = "return_top: {type: flag, default: false}"


@pytest.mark.parametrize(
    "change, fragment, message",
    [
        # unknown keys, at every depth
        (
            ("bundle: tiny\n", "bundle: tiny\ntitel: x\n"),
            "titel",
            "unknown key 'titel'; known: bundle, doc, include, ops, root",
        ),
        (("exclude: [", "exlude: ["), "exlude", "unknown key 'exlude'; did you mean 'exclude'?"),
        (("role: output}\n      top", "rol: output}\n      top"), "rol: ", "unknown key 'rol'; did you mean 'role'?"),
        (("{max: 4096}", "{maximum: 4096}"), "maximum", "unknown key 'maximum'; did you mean 'max'?"),
        (("grid: [rows]", "gird: [rows]\n        grid: [rows]"), "gird", "unknown key 'gird'; did you mean 'grid'?"),
        (("pick: return_top", "pck: return_top, pick: return_top"), "pck", "unknown key 'pck'; did you mean 'pick'?"),
        (
            ("BLOCK == 64, options: {", "BLOCK == 64, option: {}, options: {"),
            "option: {}",
            "unknown key 'option'; did you mean 'options'?",
        ),
        # missing keys
        (("        grid: [rows]\n", ""), "kernel: ", None),
        (("shape: [rows], dtype", "dtype"), "top: {dtype", f"{WHERE}.tensors.top: the key 'shape' is missing"),
        # wrong types
        (
            ("dtype: float32, role", "dtype: 32, role"),
            "dtype: 32",
            f"{WHERE}.tensors.top.dtype: expected text (given: 32)",
        ),
        (
            ("role: output, when", "role: outptu, when"),
            "role: outptu",
            f"{WHERE}.tensors.top.role: Input should be 'input', 'output' or 'inout' (given: 'outptu')",
        ),
        (
            ("optional: true", "optional: yes"),
            "optional",
            f"{WHERE}.tensors.bias.optional: expected true or false (given: 'yes')",
        ),
        (
            ("[rows|1, cols]", "[rows|1, [cols]]"),
            "[cols]]",
            f"{WHERE}.tensors.bias.shape.1: expected text or a whole number (given: a list)",
        ),
        (
            ("when: rows > 0", "when: [rows > 0]"),
            "when: [rows",
            f"{WHERE}.launches.0.when: expected text or a whole number or a number or true or false (given: a list)",
        ),
        (
            ("require: [cols % 2 == 0]", "require: cols % 2 == 0"),
            "require",
            f"{WHERE}.require: expected a list (given: 'cols % 2 == 0')",
        ),
        (
            ("type: fp32,", "type: fp23,"),
            "type: fp23",
            f"{WHERE}.scalars.factor.type: 'fp23' is no scalar type; did you mean 'fp32'?",
        ),
        (
            ("T: [float16, float32]", "T: [bfloat61, float32]"),
            "bfloat61",
            f"{WHERE}.dtypes.T.0: 'bfloat61' is no dtype; did you mean 'bfloat16'?",
        ),
        (("dtype: float32}}", "dtype: T}}"), "dtype: T}}", None),
        # sizes and ranges
        (("T: [float16, float32]", "T: []"), "T: []", f"{WHERE}.dtypes.T: at least 1 allowed, 0 given"),
        (("grid: [rows]", "grid: [1, 2, 3, 4]"), "grid", f"{WHERE}.launches.0.grid: at most 3 allowed, 4 given"),
        (("{max: 4096}", "{min: 5, max: 4}"), "cols: {min", f"{WHERE}.dims.cols: min 5 is over max 4"),
        (("default: cols ** -0.5", "min: 2, max: 1.5"), "factor", f"{WHERE}.scalars.factor: min 2 is over max 1.5"),
        (
            ("options: {num_stages: 1}", "options: {num_stages: 1}, deny: x"),
            "{when: BLOCK == 64",
            f"{WHERE}.overrides.0: an override has either `options` or `deny`",
        ),
        (
            ("options: {num_stages: 1}", "options: {}"),
            "{when: BLOCK == 64",
            f"{WHERE}.overrides.0: an override has either `options` or `deny`",
        ),
        # names
        (
            ("bundle: tiny", "bundle: ti-ny"),
            "bundle",
            f"bundle: 'ti-ny' {NO_NAME}",
        ),
        (
            ("  scale:\n", "  2scale:\n"),
            "2scale",
            f"ops.2scale: '2scale' {NO_NAME}",
        ),
        (
            ("      top: {", "      to__p: {"),
            "to__p",
            f"{WHERE}.tensors.to__p: 'to__p' {NO_NAME}",
        ),
        (
            ("k.py:scale_rows", "k.py"),
            "kernel",
            f"{WHERE}.launches.0.kernel: 'k.py' is no kernel: path/from/the/root.py:function",
        ),
    ],
)
def test_a_fault_has_its_place_and_says_what_is_allowed(tmp_path, change, fragment, message):
    text = edit(EVERYTHING, change)
    (found,) = faults(tmp_path, text)
    if message is None:
        message = {
            "kernel: ": f"{WHERE}.launches.0: the key 'grid' is missing",
            "dtype: T}}": f"{WHERE}.workspace.partial.dtype: 'T' is no dtype; known: ",
        }[fragment]
        assert found.startswith(f"{position(tmp_path / 'm.yaml', fragment)}: {message}")
    else:
        assert found == f"{position(tmp_path / 'm.yaml', fragment)}: {message}"


def test_a_bind_entry_has_one_fault_though_it_may_be_many_things(tmp_path):
    text = edit(SCALE, ("grid: [rows]", "grid: [rows]\n        bind: {x: {valu: 3}, y: [1], z: {value: 1, type: i23}}"))
    path = tmp_path / "m.yaml"
    found = faults(tmp_path, text)
    assert found == [
        f"{position(path, 'valu: 3')}: unknown key 'valu'; did you mean 'value'?",
        f"{position(path, 'y: [1]')}: ops.scale.launches.0.bind.y: "
        "expected text or a whole number or a number or true or false or a mapping (given: a list)",
        f"{position(path, 'type: i23')}: ops.scale.launches.0.bind.z.type: "
        "'i23' is no kernarg type; did you mean 'i32'?",
    ]


def test_faults_come_together_in_the_order_of_the_file(tmp_path):
    text = edit(
        SCALE, ("bundle: tiny", "bundle: 3"), ("factor: {type: fp32}", "factor: {}"), ("grid: [rows]", "gird: [rows]")
    )
    assert [message.removeprefix(f"{tmp_path / 'm.yaml'}:") for message in faults(tmp_path, text)] == [
        "1:1: bundle: expected text (given: 3)",
        "8:7: ops.scale.scalars.factor: the key 'type' is missing",
        "13:9: ops.scale.launches.0: the key 'grid' is missing",
        "14:9: unknown key 'gird'; did you mean 'grid'?",
    ]


@pytest.mark.parametrize("text", ["", "- bundle: x\n", "just text\n", "3\n"])
def test_not_a_mapping(tmp_path, text):
    path = tmp_path / "m.yaml"
    assert faults(tmp_path, text) == [f"{path}:1:1: expected a mapping with the keys bundle, doc, root, include, ops"]


def test_an_op_that_is_there_twice(tmp_path):
    text = SCALE + SCALE.partition("ops:\n")[2]
    (found,) = faults(tmp_path, text)
    assert found.startswith(f"{tmp_path / 'm.yaml'}:16:3: duplicate key 'scale'")


def test_the_root_is_found_above_or_named(tmp_path):
    write_project(tmp_path, SCALE)
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "m.yaml").write_text(SCALE)
    assert load_manifest(deep / "m.yaml").root == tmp_path
    (deep / "k.py").write_text("")
    assert load_manifest(deep / "m.yaml").root == deep
    (deep / "m.yaml").write_text("root: ../..\n" + SCALE)
    assert load_manifest(deep / "m.yaml").root == tmp_path


def test_roots_that_are_not_there(tmp_path):
    (message,) = faults(tmp_path, "root: nowhere\n" + SCALE)
    assert message == f"{tmp_path / 'm.yaml'}:1:1: root 'nowhere': there is no folder {tmp_path / 'nowhere'}"
    (message,) = faults(tmp_path, edit(SCALE, ("k.py:", "sub/other.py:")))
    assert message == (
        f"{position(tmp_path / 'm.yaml', 'kernel: ')}: kernel file 'sub/other.py' is neither in {tmp_path} nor in a "
        "folder above it; paths start at the project root"
    )
