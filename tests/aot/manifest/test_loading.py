"""Ops of other manifests in a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from tests.support.building.builds import Project
from tests.support.building.projects import SCALE, position, tuning

OTHER = SCALE.replace("bundle: tiny", "bundle: other")
SUM = SCALE.replace("bundle: tiny", "bundle: sum").replace("  scale:", "  sum:")
INCLUDE = "bundle: tiny\ninclude:\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose manifest is `SCALE`, beside one with the same op and one with another."""
    made = Project(tmp_path)
    (tmp_path / "other.yaml").write_text(OTHER)
    (tmp_path / "sum.yaml").write_text(SUM)
    return made


def fault(project: Project, text: str, where: str) -> str:
    """The one fault of a manifest, without its place, which is that of the fragment `where`."""
    project.manifest.write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_manifest(project.manifest)
    (message,) = caught.value.messages
    place, _, rest = message.partition(": ")
    assert place == position(project.manifest, where)
    return rest


def test_a_bundle_of_included_ops(project: Project):
    """Only the values that are asked for are built; the op is otherwise the other manifest's own."""
    project.manifest.write_text(
        INCLUDE + "  other.yaml:\n    scale: {T: [float16], BLOCK: [32]}\n  sum.yaml: {sum: {}}\n"
    )
    assert project.build().exit_code == 0
    index = project.bundle()
    assert [op.name for op in index.ops] == ["scale", "sum"]
    points = {
        op: {tuple(sorted(v.axis_values.items())) for v in index.variants if v.op == op} for op in ("scale", "sum")
    }
    assert points["scale"] == {(("BLOCK", 32), ("T", "float16"))}
    assert len(points["sum"]) == 4
    (own,) = [op for op in index.ops if op.name == "sum"]
    project.manifest.write_text(SUM.replace("bundle: sum", "bundle: tiny"))
    assert project.build().exit_code == 0
    assert project.bundle().ops == (own,)


def test_own_ops_beside_included_ones(project: Project):
    project.manifest.write_text(SCALE + "include: {sum.yaml: {sum: {BLOCK: [16]}}}\n")
    result = project.build("--dry-run")
    assert result.exit_code == 0 and [line.split() for line in result.output.splitlines()[1:]] == [
        ["sum", "4"],
        ["scale", "8"],
    ]


def test_a_tuning_file_beside_the_other_manifest_counts(project: Project):
    folder = project.folder / "family"
    folder.mkdir()
    (folder / "sum.yaml").write_text(SUM)
    (folder / "tuning").mkdir()
    (folder / "tuning/sum.yaml").write_text(tuning("{scale_rows: [{name: config0, options: {num_warps: 2}}]}"))
    project.manifest.write_text(INCLUDE + "  family/sum.yaml: {sum: {T: [float32]}}\n")
    assert project.build("--filter", "block=16").exit_code == 0
    assert {variant.num_warps for variant in project.bundle().variants} == {2}


def test_what_is_not_there(project: Project):
    assert fault(project, INCLUDE + "  oter.yaml: {scale: {}}\n", "oter") == (
        f"there is no manifest {project.folder / 'oter.yaml'}"
    )
    assert fault(project, INCLUDE + "  other.yaml: {scal: {}}\n", "scal") == (
        "other.yaml has no op 'scal'; did you mean 'scale'?"
    )
    assert fault(project, INCLUDE + "  other.yaml: {scale: {BLOK: [1]}}\n", "BLOK") == (
        "op 'scale' has no axis 'BLOK'; did you mean 'BLOCK'?"
    )
    assert fault(project, INCLUDE + "  other.yaml: {scale: {BLOCK: [32, 64]}}\n", "64") == (
        "BLOCK has no value 64; it has 16, 32"
    )


def test_an_op_that_two_manifests_have(project: Project):
    assert fault(project, SCALE + "include: {other.yaml: {scale: {}}}\n", "scale: {}") == (
        "the op 'scale' is in this manifest too"
    )
    (project.folder / "third.yaml").write_text(OTHER)
    text = INCLUDE + "  other.yaml: {scale: {}}\n  third.yaml: {scale: {T: [float16]}}\n"
    assert fault(project, text, "scale: {T") == "the op 'scale' is in other.yaml too"


def test_a_manifest_without_ops(project: Project):
    assert fault(project, "bundle: tiny\ninclude: {other.yaml: {}}\n", "bundle") == (
        "the manifest: there is no op: neither in `ops` nor in `include`"
    )


def test_manifests_that_include_each_other(project: Project):
    """Included is what a manifest declares itself."""
    (project.folder / "other.yaml").write_text(OTHER + "include: {m.yaml: {sum: {}}}\n")
    text = SUM.replace("bundle: sum", "bundle: tiny") + "include: {other.yaml: {scale: {}}}\n"
    project.manifest.write_text(text)
    assert [source.name for source in load_manifest(project.manifest).sources] == ["scale", "sum"]
    assert fault(project, INCLUDE + "  other.yaml: {sum: {}}\n", "sum: ").startswith("other.yaml has no op 'sum'")
