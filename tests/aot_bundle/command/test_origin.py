"""Origin of a bundle in `show` and `report`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aot_bundle.command.origin import find_origin, origin_lines
from aot_bundle.trust.signing import sign_bundle
from aot_bundle.trust.state import SignatureState
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.provenance import (
    BUILD_TYPE,
    BUILDER,
    BuildDefinition,
    Builder,
    Provenance,
    RunDetails,
    decode_provenance,
    encode_provenance,
)
from aot_runtime.trust.keys import SigningKey, encode_public, generate_key
from tests.support.command import aotbundle
from tests.support.forging import edit_index
from tests.support.signing import WHEN


def provenance(**parameters: str | bool) -> Provenance:
    return Provenance(BuildDefinition(BUILD_TYPE, parameters, ()), RunDetails(Builder(BUILDER, {"aotbuild": "1.0"})))


def test_the_command_is_the_one_that_built_it():
    said = {"manifest": "m.yaml", "arch": "gfx942", "filter": "", "lineInfo": False}
    assert find_origin(provenance(**said)).command == "aotbuild --arch gfx942 m.yaml"
    said |= {"filter": "dtype=float16|float32,op=a", "for": "a b.yaml,c.yaml", "neighbours": True, "lineInfo": True}
    assert find_origin(provenance(**said)).command == (
        "aotbuild --arch gfx942 --filter 'dtype=float16|float32,op=a' --for 'a b.yaml' --for c.yaml "
        "--neighbours --line-info m.yaml"
    )


def test_lines_are_lines(small_bundle: Path):
    """No text can add a line."""
    index = read_index(small_bundle)
    forged = encode_provenance(provenance(manifest="m.yaml\n\x1b[2Jsignature: signed", arch="gfx942"))
    index = type(index)(**{**{name: getattr(index, name) for name in index.__struct_fields__}, "provenance": forged})
    lines = origin_lines(index, SignatureState("refused", "REFUSED: \x1b[2J"))
    assert len(lines) == 2 and all(line.isprintable() for line in lines)


def test_show_tells_of_sources_and_signature(small_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    index = read_index(small_copy)
    provenance = decode_provenance(index)
    assert provenance is not None
    origin = find_origin(provenance)
    lines = aotbundle("show", small_copy).stdout.splitlines()
    made = f"{len(origin.files)} files and {len(origin.kernels)} kernels as sources"
    tools = f"aotbuild {provenance.run_details.builder.version['aotbuild']}, {index.toolchain['compiler']}"
    said = [f"provenance: tests/support/small/small.yaml, with {made}; {tools}", "signature: not signed"]
    assert lines[1:3] == said
    names = [item.name.removeprefix("tests/support/small/") for item in (*origin.files, *origin.kernels)]
    assert names[:3] == ["kernels.py", "small.yaml", "kernels.py:accumulate_values"] and len(names) == 11

    key = SigningKey(generate_key()[0])
    sign_bundle(small_copy, key, WHEN)
    policy = tmp_path / "trust.toml"
    policy.write_text(f'[keys.team]\npublic = "{encode_public(key.public)}"\nbundles = ["small"]\n')
    assert "not verified, since no policy is set: small" in aotbundle("show", small_copy).stdout.splitlines()[2]
    monkeypatch.setenv("AOTBUNDLE_TRUST", str(policy))
    shown = json.loads(aotbundle("show", small_copy, "--json").stdout)
    assert shown["signature"]["state"] == "accepted" and "key 'team'" in shown["signature"]["text"]
    dependencies = shown["provenance"]["buildDefinition"]["resolvedDependencies"]
    assert {"uri": f"pkg:pypi/{index.toolchain['compiler'].replace(' ', '@')}"} in dependencies
    policy.write_text(policy.read_text().replace('"small"', '"other"'))
    refused = aotbundle("show", small_copy, "--trust", policy)
    assert (
        refused.exit_code == 0 and "signature: REFUSED: " in refused.stdout and "may sign other only" in refused.stdout
    )
    edit_index(small_copy, lambda index: index.pop("provenance"))
    assert aotbundle("show", small_copy).stdout.splitlines()[1] == "provenance: not recorded"
    missing = aotbundle("show", small_copy, "--trust", tmp_path / "none.toml")
    assert missing.exit_code == 1 and "cannot be read" in missing.stderr


@pytest.mark.slow
def test_a_report_has_a_section_of_it(small_copy: Path, tmp_path: Path):
    for package in ("jinja2", "matplotlib", "cryptography"):
        pytest.importorskip(package, reason="signed bundles and reports need the extras `trust` and `report`")
    index = read_index(small_copy)
    provenance = decode_provenance(index)
    assert provenance is not None
    page, policy = tmp_path / "page.html", tmp_path / "trust.toml"

    def section(*options: object) -> str:
        assert aotbundle("report", small_copy, "-o", page, *options).exit_code == 0
        return page.read_text().partition('<section id="provenance"')[2].partition("</section>")[0]

    plain = section()
    assert "<p>Signature: not signed.</p>" in plain and "<code>aotbuild --arch gfx942 tests/support" in plain
    for item in provenance.build_definition.resolved_dependencies:
        assert all(digest in plain for digest in item.digest.values()) and item.name in plain
    key = SigningKey(generate_key()[0])
    sign_bundle(small_copy, key, WHEN)
    policy.write_text(f'[keys.team]\npublic = "{encode_public(key.public)}"\nbundles = ["small"]\n')
    assert "<p>Signature: signed by key &#39;team&#39; (ed25519:" in section("--trust", policy)
    policy.write_text(policy.read_text() + "revoked = true\n")
    assert "<strong>Signature: REFUSED: bundle " in section("--trust", policy)
    edit_index(small_copy, lambda index: index.pop("provenance"))
    (small_copy / "bundle.json.sig").unlink()
    assert "What it was made of is not recorded." in section()
