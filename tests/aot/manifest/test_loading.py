"""The project root, ops that other manifests declare, and tuning files."""

from pathlib import Path

import pytest

from aot.manifest.loading import load_manifest
from aot.plan.bundles import plan_bundle
from aot.targets import Target
from tests.support.building.projects import SCALE, check_fault, edit, load, rows, tuning, write_project

OTHER = SCALE.replace("bundle: tiny", "bundle: other")
SUM = SCALE.replace("bundle: tiny", "bundle: sum").replace("  scale:", "  sum:")
INCLUDE = "bundle: tiny\ninclude:\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with manifests to include: two that have the op of `SCALE`, and one that has another."""
    for name, text in {"other": OTHER, "sum": SUM, "third": OTHER + "include: {m.yaml: {sum: {}}}\n"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def planned(folder: Path, text: str) -> list[tuple]:
    """Return (op, values) of each aligned variant that a manifest plans."""
    specs = [variant.spec for variant in plan_bundle(load(folder, text), Target("gfx942"), {}, False).variants]
    return [(spec.op, *dict(spec.point).values()) for spec in specs if spec.aligned]


def test_a_bundle_of_included_ops(folder: Path):
    """Only the values that are asked for are built, before the manifest's own ops."""
    sums = [("sum", dtype, block) for dtype in ("float16", "float32") for block in (16, 32)]
    text = INCLUDE + "  other.yaml:\n    scale: {T: [float16], BLOCK: [32]}\n  sum.yaml: {sum: {}}\n"
    assert planned(folder, text) == [("scale", "float16", 32), *sums]
    text = SCALE + "include: {sum.yaml: {sum: {BLOCK: [16]}}}\n"
    assert planned(folder, text) == [*sums[::2], *(("scale", *point) for _, *point in sums)]


def test_what_is_included_is_what_a_manifest_declares_itself(folder: Path):
    text = SUM.replace("bundle: sum", "bundle: tiny") + "include: {third.yaml: {scale: {}}}\n"
    assert [source.name for source in load(folder, text).sources] == ["scale", "sum"]


def test_a_tuning_file_beside_the_other_manifest_counts(folder: Path):
    (folder / "family/tuning").mkdir(parents=True)
    (folder / "family/sum.yaml").write_text(SUM)
    (folder / "family/tuning/sum.yaml").write_text(tuning("{scale_rows: [{name: config0, options: {num_warps: 2}}]}"))
    bundle = plan_bundle(load(folder, INCLUDE + "  family/sum.yaml: {sum: {}}\n"), Target("gfx942"), {}, False)
    assert {variant.job.options for variant in bundle.variants} == {(("num_warps", 2),)}


FAULTS = r"""
{@oter.yaml: {scale: {}}} -> manifest FOLDER/oter.yaml does not exist
{other.yaml: {@scal: {}}} -> other.yaml has no op 'scal'; did you mean 'scale'?
{other.yaml: {scale: {@BLOK: [1]}}} -> op 'scale' has no axis 'BLOK'; did you mean 'BLOCK'?
{other.yaml: {scale: {BLOCK: [32, @64]}}} -> BLOCK has no value 64; it has 16, 32
{other.yaml: {scale: {}}, third.yaml: {@scale: {}}} -> op 'scale' is also in other.yaml
{third.yaml: {@sum: {}}} -> third.yaml has no op 'sum'; known: scale
"""


@pytest.mark.parametrize(("include", "message"), rows(FAULTS))
def test_faults_of_what_is_included(folder: Path, include: str, message: str):
    check_fault(folder, f"bundle: tiny\ninclude: {include}\n", message.replace("FOLDER", str(folder)), load)


def test_a_bundle_has_some_op_and_none_twice(folder: Path):
    text = "@bundle: tiny\ninclude: {other.yaml: {}}\n"
    check_fault(folder, text, "the manifest: the manifest has no op: neither `ops` nor `include` has one", load)
    text = SCALE + "include: {other.yaml: {@scale: {}}}\n"
    check_fault(folder, text, "op 'scale' is also in this manifest", load)


def test_the_root_is_found_above_or_named(tmp_path: Path):
    deep = tmp_path / "a" / "b"
    write_project(tmp_path, SCALE)
    deep.mkdir(parents=True)
    (deep / "m.yaml").write_text(SCALE)
    assert load_manifest(deep / "m.yaml").root == tmp_path
    (deep / "k.py").touch()
    assert load_manifest(deep / "m.yaml").root == deep
    (deep / "m.yaml").write_text("root: ../..\n" + SCALE)
    assert load_manifest(deep / "m.yaml").root == tmp_path


def test_roots_that_are_not_there(tmp_path: Path):
    said = f"root 'nowhere': folder {tmp_path / 'nowhere'} does not exist"
    check_fault(tmp_path, "@root: nowhere\n" + SCALE, said, load)
    said = f"kernel file 'no/k.py' is neither in {tmp_path} nor in a folder above it; paths start at the project root"
    check_fault(tmp_path, edit(SCALE, ("kernel: k.py:", "@kernel: no/k.py:")), said, load)


def test_names_that_are_too_long_for_a_file(tmp_path: Path):
    name = "x" * 300
    folder = tmp_path / "m"
    said = f"root '{name}': folder {folder / name} does not exist"
    check_fault(folder, f"@root: {name}\n" + SCALE, said, load)
    said = f"manifest {folder / name}.yaml does not exist"
    check_fault(folder, f"bundle: tiny\ninclude: {{@{name}.yaml: {{scale: {{}}}}}}\n", said, load)
    said = f"kernel file '{name}.py' is neither in {folder} nor in a folder above it; paths start at the project root"
    check_fault(folder, edit(SCALE, ("kernel: k.py:", f"@kernel: {name}.py:")), said, load)
