from pathlib import Path

import pytest

from aot.manifest.yamlfile import ManifestError
from aot_runtime.contract import records
from tests.support.building.projects import EVERYTHING, check_fault, contract, edit, rows, tuning, unmarked


def tune(folder: Path, text: str) -> Path:
    path = folder / "tuning" / "scale.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_tuning_file_is_laid_over_the_manifest_for_its_architectures_alone(tmp_path: Path):
    """Entries override the manifest's config of their name, and other configs go in front."""
    text = edit(EVERYTHING, ("{name: base, ", "{"))
    entries = """
      scale_rows:
        - {when: rows > 9, blocks: {WIDTH: 16}}
        - {name: config1, blocks: {WIDTH: 1, MORE: 3}, options: {num_stages: 2}}
        - {name: wide, when: cols > 64}
        - {name: tall, when: rows > 8}
    derived: {chunks: rows + 3}"""
    tune(tmp_path, tuning(entries, "gfx942, gfx90a"))
    op = contract(tmp_path, text)
    configs = op.launches[0].configs
    assert [(item.name, item.values, item.options, item.when) for item in configs] == [
        ("tuned0", {"WIDTH": 16}, {}, "rows > 9"),
        ("tall", {}, {}, "rows > 8"),
        ("wide", {"WIDTH": 4}, {"num_warps": 8}, "cols > 64"),
        ("config1", {"WIDTH": 1, "MORE": 3}, {"num_warps": 4, "num_stages": 2}, ""),
    ]
    assert op.derived == (records.Derived("chunks", "rows + 3"),)
    assert contract(tmp_path, text, "gfx90a") == op
    assert contract(tmp_path, text, "gfx950").derived == (records.Derived("chunks", "cdiv(cols, 16)"),)
    assert [item.name for item in contract(tmp_path, text, "gfx950").launches[0].configs] == ["wide", "config1"]


PRICED = edit(
    EVERYTHING,
    ("grid: ", "cost: start + step * cdiv(cols, WIDTH)\n        grid: "),
    ("{name: base, ", "{name: base, fitted: {start: 3, step: 0.5}, "),
)


def test_a_tuning_file_gives_configs_the_constants_of_their_launchs_cost(tmp_path: Path):
    tune(
        tmp_path, tuning("{scale_rows: [{name: wide, fitted: {start: 2, step: 1.5}}, {name: base, fitted: {step: 4}}]}")
    )
    costs = {item.name: item.cost for item in contract(tmp_path, PRICED).launches[0].configs}
    assert costs == {"wide": "2 + 1.5 * cdiv(cols, 4)", "base": "3 + 4 * cdiv(cols, 2)"}
    costs = {item.name: item.cost for item in contract(tmp_path, PRICED, "gfx950").launches[0].configs}
    assert costs == {"wide": "", "base": "3 + 0.5 * cdiv(cols, 2)"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("fitted: {start: 3, step: 0.5}", "@fitted: {start: 3}"),
         "op 'scale': '3 + step * cdiv(cols, 2)' uses undefined name 'step'; known: BIASED, BLOCK, T, TOP, aligned, "
         "arch, chunks, cols, factor, fp8, has_bf16_cvt, has_tf32, has_wgmma, lds_bytes, mode, num_cus, num_xcds, "
         "return_top, rows, warp_size"),
        (("fitted: {start: 3, step: 0.5}", "@fitted: {start: 3, step: 0.5, stop: 1}"),
         "op 'scale': config 'base' has the constant 'stop', which the launch's `cost` does not read; did you mean "
         "'step'?"),
        (("{name: wide, when: cols > 32", "@{name: wide"),
         "op 'scale': config 'wide' has no `when`, so the configs after it are never used"),
    ],
)  # fmt: skip
def test_a_fault_of_a_cost_has_its_place(tmp_path: Path, change: tuple[str, str], message: str):
    check_fault(tmp_path, edit(PRICED, change), message)


# The launches of a tuning file, with an @ where the fault is, and what is said.
FAULTS = """
{@scale_row: []} -> no launch 'scale_row' in op 'scale'; did you mean 'scale_rows'?
{scale_rows: [{blocks: {@WIDTH: [4]}}]} -> tuning.0.launches.scale_rows.0.blocks.WIDTH: expected true or false or a
 whole number or a number or text (given: a list)
{scale_rows: [{name: base, @BLOCK: 4}]} -> unknown key 'BLOCK'; known: blocks, constants, fitted, from_kernel,
 measured, modelled, name, options, signature, when
{scale_rows: [{name: base, options: {@num_warp: 4}}]}
 -> op 'scale': config 'base': unknown compiler option 'num_warp'; did you mean 'num_warps'?
{scale_rows: [{name: base, @when: rows >, blocks: {WIDTH: 1}}]}
 -> op 'scale': 'rows >' is not an expression: invalid syntax
{scale_rows: [{@when: rowz > 1, blocks: {WIDTH: 1}}]}
 -> op 'scale': 'rowz > 1' uses undefined name 'rowz'; did you mean 'rows'?
{scale_rows: [{name: base, @when: rows > 1}]}
 -> op 'scale': the last config ('base') must serve every call: it has no `when`
{scale_rows: [@{name: always, blocks: {WIDTH: 1}}]}
 -> op 'scale': config 'always' has no `when`, so the configs after it are never used
{scale_rows: [{name: base, @fitted: {start: 1}}]}
 -> op 'scale': config 'base' has `fitted` constants, but its launch has no `cost`
{@scale_rows: [{name: base, blocks: {WIDTH: 1}}, {name: base, blocks: {WIDTH: 2}}]}
 -> op 'scale': two configs have the same name (base, base)
"""
DERIVED = tuning("{}") + "    derived: {@%s}\n"
ORIGIN = "tuning.0: configs have one of `measured`, `modelled` and `published`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((tuning(launches), message) for launches, message in rows(FAULTS)),
        (DERIVED % "chunk: 1", "no derived number 'chunk' in op 'scale'; did you mean 'chunks'?"),
        (DERIVED % "chunks: rowz", "op 'scale': 'rowz' uses undefined name 'rowz'; did you mean 'rows'?"),
        ("@doc: x\n", "the manifest: the key 'tuning' is missing"),
        ("tuning: [\n@", "not valid YAML: expected the node content, but found '<stream end>'"),
        (tuning("{}", "gfx942, @gfx94"), "tuning.0.arch.1: unknown architecture 'gfx94'; did you mean 'gfx942'?"),
        (tuning("{}") + tuning("{}", "gfx90a, @gfx942")[8:], "another entry also has gfx942"),
        (edit(tuning("{}"), ("arch", "@arch"), ("    modelled: {by: registers}\n", "")), ORIGIN),
        (edit(tuning("{}"), ("arch", "@arch")) + "    published: {source: a table}\n", ORIGIN),
        (
            edit(tuning("{}"), ("modelled: {by: registers}", "measured: {device: MI300X, @date: '2026', figure: x}")),
            "tuning.0.measured.date: '2026' is not a date: YYYY-MM-DD, in quotes",
        ),
    ],
)
def test_a_fault_in_a_tuning_file_has_its_place_there(tmp_path: Path, text: str, message: str):
    place, plain = unmarked(text)
    path = tune(tmp_path, plain)
    with pytest.raises(ManifestError) as caught:
        contract(tmp_path, EVERYTHING)
    assert caught.value.messages == (f"{path}:{place}: {message}",)


def test_a_fault_of_the_manifests_part_of_a_tuned_config_stays_there(tmp_path: Path):
    tune(tmp_path, tuning("{scale_rows: [{name: wide, blocks: {WIDTH: 1}}]}"))
    said = "op 'scale': 'colz > 32' uses undefined name 'colz'; did you mean 'cols'?"
    check_fault(tmp_path, edit(EVERYTHING, ("when: cols > 32", "@when: colz > 32")), said)
