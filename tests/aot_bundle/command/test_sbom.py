"""`aotbundle sbom`: bills of materials, checked against CycloneDX's schema and the files."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.packing import pack_bundle
from aot_bundle.verification import generated_files, listed_files
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import INDEX
from tests.support.command import aotbundle
from tests.support.forging import edit_index


def bill_text(bundle: Path) -> str:
    result = aotbundle("sbom", bundle)
    assert result.exit_code == 0, result.output
    return result.stdout


def components(bill: dict[str, Any], scope: str) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in bill["components"] if item["scope"] == scope}


def hash_of(component: dict[str, Any]) -> str:
    (only,) = component["hashes"]
    assert only["alg"] == "SHA-256"
    return only["content"]


def needs(bill: dict[str, Any]) -> dict[str, set[str]]:
    return {item["ref"]: set(item.get("dependsOn", ())) for item in bill["dependencies"]}


def hold_to_the_schema(text: str) -> None:
    """Check a bill with CycloneDX's library, and that each reference names a component."""
    pytest.importorskip("cyclonedx", reason="CycloneDX's schema comes with cyclonedx-python-lib")
    from cyclonedx.model.bom import Bom
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bom = Bom.from_json(json.loads(text))
    assert bom.validate()


def test_what_is_shipped_is_there_with_the_hashes_that_it_has(small_bundle: Path):
    index = read_index(small_bundle)
    bill = json.loads(bill_text(small_bundle))
    assert bill["metadata"]["component"]["name"] == "small"
    shipped = components(bill, "required") | components(bill, "optional")
    assert shipped.keys() == {INDEX, *generated_files(index), *listed_files(index)}
    for name, component in shipped.items():
        assert hash_of(component) == hashlib.sha256((small_bundle / name).read_bytes()).hexdigest()
    assert needs(bill)["bundle"] == set(shipped)


def test_what_it_was_made_of(small_bundle: Path):
    index = read_index(small_bundle)
    bill = json.loads(bill_text(small_bundle))
    used, graph = components(bill, "excluded"), needs(bill)
    for name in ("kernels.py", "small.yaml"):
        source = Path(__file__).parents[2] / "support/small" / name
        assert hash_of(used[f"tests/support/small/{name}"]) == hashlib.sha256(source.read_bytes()).hexdigest()
    triton = f"pkg:pypi/{index.toolchain['compiler'].replace(' ', '@')}"
    assert used["triton"]["purl"] == triton and used["triton"]["version"] == triton.partition("@")[2]
    kernel = "source/tests/support/small/kernels.py:affine_rows"
    made = {index.blobs[variant.code].file for variant in index.variants if variant.op == "affine"}
    assert {ref for ref, needed in graph.items() if kernel in needed} == made
    assert all(f"package/{triton}" in graph[ref] for ref in made)
    assert graph[kernel] == {"source/tests/support/small/kernels.py"}


def test_the_same_bundle_gives_the_same_bill(small_bundle: Path, small_copy: Path, tmp_path: Path):
    """The bill does not depend on the bundle's path or form; another bundle has another serial number."""
    text = bill_text(small_bundle)
    pack_bundle(small_copy, tmp_path / "small.aotb")
    assert text == bill_text(small_copy) == bill_text(tmp_path / "small.aotb")
    written = aotbundle("sbom", small_copy, "-o", tmp_path / "bom.json")
    assert written.exit_code == 0 and (tmp_path / "bom.json").read_text() == text
    edit_index(small_copy, lambda index: index["toolchain"].update(note="other"))
    other = json.loads(bill_text(small_copy))
    assert other["serialNumber"] != json.loads(text)["serialNumber"]
    failed = aotbundle("sbom", small_copy, "-o", tmp_path / "none/bom.json")
    assert failed.exit_code == 1 and "cannot be written" in failed.stderr


@pytest.mark.slow
def test_bills_are_what_the_schema_says(small_bundle: Path, small_copy: Path, rows_bundle: Path):
    for bundle in (small_bundle, rows_bundle):
        hold_to_the_schema(bill_text(bundle))
    shutil.rmtree(small_copy / "include")
    edit_index(small_copy, lambda index: index.pop("provenance"))
    hold_to_the_schema(bill_text(small_copy))


@pytest.mark.slow
def test_a_forged_provenance_makes_no_wrong_bill(small_copy: Path):
    """The forged texts are clashing and repeated names, and invalid hashes."""
    dependencies = [
        {"name": "bundle", "digest": {"sha256": "no digits"}},
        {"name": "bundle", "digest": {"sourceClosure": ""}},
        {"name": "", "digest": {}},
        {"uri": "bundle"},
        {"uri": "bundle.json@\x00\n"},
    ]

    def forge(index: dict[str, Any]) -> None:
        index["provenance"]["buildDefinition"]["resolvedDependencies"] = dependencies * 2
        index["provenance"]["runDetails"]["builder"]["version"] = {"": "", "bundle": "1"}

    edit_index(small_copy, forge)
    hold_to_the_schema(bill_text(small_copy))
