"""docs/manifest.md agrees with the schema on every key, and its examples build."""

from __future__ import annotations

import copy
import itertools
import json
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from tests.docs.markdown import Block, blocks, section, table
from tests.docs.scripts import ROOT

pytest.importorskip("triton", reason="manifests need the extra `build`")

from click.testing import CliRunner
from pydantic import BaseModel, TypeAdapter
from ruamel.yaml import YAML

from aot.cli import main
from aot.manifest import schema
from aot.manifest.loading import load_manifest
from aot_runtime.call.documentation import call_signature
from aot_runtime.contract import expressions, records
from aot_runtime.contract.arch import ARCHITECTURES, EXPRESSION_NAMES
from aot_runtime.contract.dtypes import DTYPES, SCALAR_TYPES
from aot_runtime.contract.manifest_rules import RESERVED_OPS
from aot_runtime.contract.names import Scope, config_names

PAGE = (ROOT / "docs/manifest.md").read_text(encoding="utf-8")
MODELS: dict[str, type[BaseModel]] = {
    "Manifest": schema.ManifestSpec,
    "Op": schema.OpSpec,
    "Tensor": schema.TensorSpec,
    "Offsets": schema.OffsetsSpec,
    "Scalar": schema.ScalarSpec,
    "Dim": schema.DimSpec,
    "Axis": schema.AxisSpec,
    "Workspace": schema.WorkspaceSpec,
    "Launch": schema.LaunchSpec,
    "Config": schema.ConfigSpec,
    "Bind": schema.BindSpec,
    "Override": schema.OverrideSpec,
    "Selftest case": schema.SelftestSpec,
    "Selftest input": schema.InputSpec,
    "Tuning file": schema.TuningSpec,
    "Tuning entry": schema.ArchTuningSpec,
    "Measured": schema.MeasuredSpec,
    "Modelled": schema.ModelledSpec,
    "Published": schema.PublishedSpec,
}
ARCHS = ("gfx942", "sm_90")


def read(text: str) -> Any:
    return YAML(typ="safe").load(text)


def rows(title: str) -> list[list[str]]:
    return list(table(section(PAGE, title)))


def keys(title: str) -> list[str]:
    return [row[0].strip("`") for row in rows(title)]


def test_every_model_has_a_section():
    specs = {item for item in vars(schema).values() if isinstance(item, type) and issubclass(item, schema.Spec)}
    assert set(MODELS.values()) == specs - {schema.Spec}


@pytest.mark.parametrize("title", MODELS)
def test_exactly_the_keys_that_there_are(title: str):
    assert keys(title) == list(MODELS[title].model_fields)


@pytest.mark.parametrize("title", MODELS)
def test_defaults(title: str):
    for key, _, default, *_ in rows(title):
        field = MODELS[title].model_fields[key.strip("`")]
        expected = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        assert default == expected, key


@pytest.mark.parametrize("title", MODELS)
def test_examples_of_keys_are_valid(title: str):
    for key, _, _, example, meaning in rows(title):
        name = key.strip("`")
        field = MODELS[title].model_fields[name]
        value = read(example.strip("`"))
        assert list(value) == [name] and meaning.endswith(".")
        kind = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        TypeAdapter(kind).validate_python(value[name], strict=True)
        assert field.is_required() or value[name] != field.default, f"{key}: the example is the default"


def test_compiler_options():
    from aot.compile.settings import option_names
    from aot.targets import parse_arch

    (options,) = (row for row in rows("Config") if row[0] == "`options`")
    named = re.findall(r"`(\w+)`", options[4])
    assert len(named) > 5 and set(named) <= option_names(parse_arch("gfx942")) | option_names(parse_arch("sm_90"))


def test_lists_of_names():
    (dtype,) = (row for row in rows("Tensor") if row[0] == "`dtype`")
    assert re.findall(r"`(\w+)`", dtype[4]) == list(DTYPES)
    (kind,) = (row for row in rows("Scalar") if row[0] == "`type`")
    assert re.findall(r"`(\w+)`", kind[4])[: len(SCALAR_TYPES) + 1] == [*SCALAR_TYPES, "flag"]
    (ops,) = (row for row in rows("Manifest") if row[0] == "`ops`")
    assert set(re.findall(r"`(\w+)`", ops[4])) == RESERVED_OPS


def test_functions_of_expressions():
    forms = " ".join(row[0] for row in rows("Expressions"))
    assert set(re.findall(r"`(\w+)\(", forms)) == {*expressions.FUNCTIONS, *expressions._QUERIES}
    for text in re.findall(r"`(\w+\([^…`]*\))`", forms):
        expressions.parse(text)


# The examples


def write_project(folder: Path) -> dict[str, Path]:
    """Write the page's files; return its manifests."""
    every = [*blocks(PAGE, "yaml"), *blocks(PAGE, "python")]
    paths = {}
    for block in every:
        if name := named_file(block):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
            if path.suffix == ".yaml" and path.parent.name == "manifests":
                paths[name] = path
    return paths


def named_file(block: Block) -> str:
    kind, _, name = block.comment.partition(": ")
    return name if kind == "file" else ""


def fragments() -> list[Block]:
    return [block for block in blocks(PAGE, "yaml") if not named_file(block)]


def dry_run(manifest: Path, arch: str) -> str:
    result = CliRunner().invoke(main, ["--dry-run", "--arch", arch, str(manifest)])
    assert result.exit_code == 0, result.output
    return result.output


MANIFESTS = [name for block in blocks(PAGE, "yaml") if (name := named_file(block)).count("/") == 1]


@pytest.mark.parametrize(("name", "arch"), list(itertools.product(MANIFESTS, ARCHS)))
def test_manifests_pass_a_dry_run(name: str, arch: str, tmp_path: Path):
    assert f"-{arch}: " in dry_run(write_project(tmp_path)[name], arch)


@pytest.mark.parametrize("block", fragments(), ids=lambda block: block.text.split(":")[0])
def test_fragments_pass_a_dry_run_where_they_belong(block: Block, tmp_path: Path):
    match = re.fullmatch(r"fragment of (\S+): (\S+)", block.comment)
    assert match, f"neither a file nor a fragment of one:\n{block.text}"
    path = write_project(tmp_path)[match[1]]
    data = read(path.read_text())
    inner = data
    for key in match[2].split("."):
        inner = inner[key]
    before = copy.deepcopy(inner)
    inner.update(read(block.text))
    assert inner != before
    with path.open("w") as file:
        YAML().dump(data, file)
    for arch in ARCHS:
        dry_run(path, arch)


def test_the_first_manifest_is_what_the_page_says(tmp_path: Path):
    path = write_project(tmp_path)["manifests/scale.yaml"]
    (tmp_path / "manifests/tuning/scale_rows.yaml").unlink()
    assert "scale-gfx942: 8 variants" in dry_run(path, "gfx942")
    command = re.search(r"`aotbuild (--arch gfx942 --filter .*?)`", PAGE)
    assert command
    arguments = [part.strip("'") for part in command[1].split()]
    result = CliRunner().invoke(main, [*arguments[:-1], str(path)])
    assert result.exit_code == 0 and "scale-gfx942: 2 variants" in result.output, result.output


def test_the_tuning_file_does_what_the_page_says(tmp_path: Path):
    from aot.plan.contract import build_contract

    loaded = load_manifest(write_project(tmp_path)["manifests/scale.yaml"])
    options = ("num_warps", "waves_per_eu")
    tuned = build_contract(loaded, "scale_rows", "gfx942", options).launches[0].configs
    assert [(config.name, config.when) for config in tuned] == [
        ("short", "cols <= 256"), ("wide", "BLOCK == 1024"), ("narrow", ""),
    ]  # fmt: skip
    assert tuned[1].options == {"num_warps": 16, "waves_per_eu": 2}
    plain = build_contract(loaded, "scale_rows", "gfx950", options).launches[0].configs
    assert [config.name for config in plain] == ["wide", "narrow"]


@pytest.mark.parametrize(("name", "op"), [("scale", "scale_rows"), ("sums", "row_sums")])
def test_signatures(name: str, op: str, tmp_path: Path):
    from aot.plan.contract import build_contract

    loaded = load_manifest(write_project(tmp_path)[f"manifests/{name}.yaml"])
    assert f"`{op}{call_signature(build_contract(loaded, op, 'sm_90', ('num_warps',)))}`" in PAGE


# Which names an expression may use


def place(path: tuple[str | int, ...]) -> str:
    """Return `launches.*.grid` for `('launches', 0, 'grid', 1)`."""
    first, *rest = path
    if first in ("require", "derived", "alternatives", "exclude"):
        return str(first)
    names = [str(key) for key in rest if isinstance(key, str)]
    if first == "launches":
        return ".".join([str(first), "*", "configs.*.when" if names[0] == "configs" else names[0]])
    return ".".join([str(first), "*", *names[1:]])


def test_names_by_place(sample: records.Index):
    (op,) = (op for op in sample.ops if op.name == "reduce")
    op = msgspec.structs.replace(op, alternatives=(records.Alternatives("ways", ("1",)),))
    scope = Scope.of(op)
    config = config_names(op.launches[0])
    # Of several expressions at a place the last one, so that names of "those before" are there.
    seen = {place(path): set(names) for path, _, names in scope.expressions(op) if path[:2] != ("launches", 1)}
    (seen["launches.*.when"],) = (
        set(names) for path, _, names in scope.expressions(op) if path == ("launches", 1, "when")
    )
    seen["launches.*.bind"] = seen["launches.*.cost"] = {*scope.all_names(op), *config}
    seen["exclude"] = set(scope.build_names(op))
    seen["overrides.*.when"] = {*scope.build_names(op), *config}
    columns: list[set[str]] = [
        set(scope.dims), {"num_cus"}, {scalar.name for scalar in op.scalars}, {item.name for item in op.derived},
        {*(axis.name for axis in op.axes), "aligned"}, set(config),
    ]  # fmt: skip
    documented = {row[0].strip("`"): row[1:] for row in _scope_rows()}
    assert documented.keys() == seen.keys()
    for where, cells in documented.items():
        assert {*EXPRESSION_NAMES, *op.dtypes} <= seen[where]
        for cell, names in zip(cells[: len(columns)], columns, strict=True):
            known = names & seen[where]
            holds = {
                "yes": known == names,
                "": not known,
                "those before": known != names and len(known) == len(names) - 1,
            }
            assert holds[cell], (where, cell, names, known)


def test_names_of_what_an_architecture_has():
    text = section(PAGE, "Expressions")
    documented = {row[0].strip("`"): row[1:] for row in table(text[text.index("| Name ") :])}
    assert documented.keys() == EXPRESSION_NAMES.keys()
    kinds = {"text": str, "boolean": bool, "integer": int}
    for position, arch in enumerate(ARCHS, start=2):
        constants = ARCHITECTURES[arch].constants
        assert {name: (kinds[row[0]], row[position]) for name, row in documented.items()} == {
            name: (type(value), str(value).lower() if value is False or value is True else str(value))
            for name, value in constants.items()
        }


def _scope_rows() -> list[list[str]]:
    text = section(PAGE, "Expressions")
    return list(table(text[text.index("| Place ") :]))


@pytest.mark.parametrize("where", [row[0].strip("`") for row in _scope_rows()])
def test_strides_by_place(where: str, tmp_path: Path):
    """`stride` is taken where the page says so, and refused elsewhere."""
    path = write_project(tmp_path)["manifests/scale.yaml"]
    data = read(path.read_text())
    op = data["ops"]["scale_rows"]
    text = "stride(x, rows) >= 0"
    launch = op["launches"][0]
    match where:
        case "tensors.*.shape":
            op["tensors"]["out"]["shape"] = ["rows", "cols + stride(x, rows)"]
        case "tensors.*.when":
            op["tensors"]["out"]["when"] = text
        case "scalars.*.default":
            op["scalars"]["offset"]["default"] = "stride(x, rows)"
        case "require" | "exclude":
            op[where] = [text]
        case "derived":
            op["derived"] = {"step": "stride(x, rows)"}
        case "alternatives":
            op["alternatives"] = {"step": [1, "stride(x, rows)"]}
        case "launches.*.cost":
            launch["cost"] = "start * stride(x, rows)"
            launch["configs"][0]["fitted"] = {"start": 2}
        case "constexprs.*.pick":
            op["constexprs"]["BLOCK"]["pick"] = "smallest >= min(stride(x, rows), 256)"
        case "workspace.*.shape":
            op["workspace"] = {"space": {"shape": ["stride(x, rows)"], "dtype": "int32"}}
        case "launches.*.when":
            launch["when"] = text
        case "launches.*.configs.*.when":
            launch["configs"][0]["when"] = text
        case "launches.*.grid":
            launch["grid"] = ["stride(x, rows)"]
        case "launches.*.bind":
            launch["bind"] = {"cols": "stride(x, rows)"}
        case "overrides.*.when":
            op["overrides"] = [{"when": text, "deny": "no"}]
        case _:
            pytest.fail(f"no example for {where}")
    with path.open("w") as file:
        YAML().dump(data, file)
    result = CliRunner().invoke(main, ["--dry-run", "--arch", "gfx942", str(path)])
    (row,) = (row for row in _scope_rows() if row[0] == f"`{where}`")
    assert (result.exit_code == 0) == (row[7] == "yes"), result.output
