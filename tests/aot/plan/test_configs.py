import pytest

from aot.manifest.schema import ConfigSpec
from aot.manifest.yamlfile import ManifestError
from aot.plan.configs import overlay_configs
from tests.support.building.projects import EVERYTHING, contract, position, tuning

BASE = [{"name": "wide", "blocks": {"M": 4}, "when": "a"}, {"blocks": {"M": 2}}]
WIDE = {"name": "wide", "blocks": {"M": 4}, "when": "a"}
SECOND = {"name": "config1", "blocks": {"M": 2}}


@pytest.mark.parametrize(
    "overlay, expected",
    [
        ([], [WIDE, SECOND]),
        (
            [{"name": "wide", "blocks": {"M": 8, "N": 1}, "options": {"num_warps": 2}}],
            [{**WIDE, "blocks": {"M": 8, "N": 1}, "options": {"num_warps": 2}}, SECOND],
        ),
        ([{"name": "wide", "when": "b"}], [{**WIDE, "when": "b"}, SECOND]),
        ([{"name": "config1", "blocks": {"M": 1}}], [WIDE, {"name": "config1", "blocks": {"M": 1}}]),
        (
            [{"blocks": {"M": 9}, "when": "b"}, {"name": "config1"}, {"name": "new", "when": "c"}],
            [{"name": "tuned0", "blocks": {"M": 9}, "when": "b"}, {"name": "new", "when": "c"}, WIDE, SECOND],
        ),
    ],
)
def test_entries_by_name_change_and_others_go_in_front(overlay, expected):
    base, changes, wanted = (
        [ConfigSpec.model_validate(entry) for entry in group] for group in (BASE, overlay, expected)
    )
    before = [entry.model_copy(deep=True) for entry in base]
    assert overlay_configs(base, changes) == wanted
    assert base == before


def tune(tmp_path, text: str):
    path = tmp_path / "tuning" / "scale.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_tuning_file_is_laid_over_the_manifest_for_its_architecture_alone(tmp_path):
    tune(
        tmp_path,
        tuning(
            "{scale_rows: [{name: base, blocks: {WIDTH: 1}, options: {num_warps: 2}}, "
            "{name: tall, when: rows > 9, blocks: {WIDTH: 16}}]}",
            "gfx942, gfx90a",
        ),
    )
    configs = contract(tmp_path, EVERYTHING).launches[0].configs
    assert [(item.name, item.values, item.options, item.when) for item in configs] == [
        ("tall", {"WIDTH": 16}, {}, "rows > 9"),
        ("wide", {"WIDTH": 4}, {"num_warps": 8}, "cols > 32"),
        ("base", {"WIDTH": 1}, {"num_warps": 2}, ""),
    ]
    assert contract(tmp_path, EVERYTHING, "gfx90a").launches[0].configs == configs
    assert [item.name for item in contract(tmp_path, EVERYTHING, "gfx950").launches[0].configs] == ["wide", "base"]


def test_a_tuning_file_computes_derived_numbers_otherwise(tmp_path):
    before = contract(tmp_path, EVERYTHING).derived
    tune(tmp_path, tuning("{}") + "    derived: {chunks: rows + 3}\n")
    (number,) = contract(tmp_path, EVERYTHING).derived
    assert (number.name, number.value) == ("chunks", "rows + 3")
    assert contract(tmp_path, EVERYTHING, "gfx950").derived == before


@pytest.mark.parametrize(
    "text, fragment, message",
    [
        (tuning("{scale_row: []}"), "scale_row", "no launch 'scale_row' in op 'scale'; did you mean 'scale_rows'?"),
        (
            tuning("{}") + "    derived: {chunk: 1}\n",
            "chunk",
            "no derived number 'chunk' in op 'scale'; did you mean 'chunks'?",
        ),
        (
            tuning("{}") + "    derived: {chunks: rowz}\n",
            "chunks: rowz",
            "op 'scale': 'rowz' uses undefined name 'rowz'; did you mean 'rows'?",
        ),
        (tuning("{}") + "    launchs: {}\n", "launchs", "unknown key 'launchs'; did you mean 'launches'?"),
        ("doc: x\n", "doc", "the manifest: the key 'tuning' is missing"),
        (
            tuning("{scale_rows: [{blocks: {WIDTH: [4]}}]}"),
            "WIDTH",
            "tuning.0.launches.scale_rows.0.blocks.WIDTH: expected true or false or a whole number or a number or text "
            "(given: a list)",
        ),
        (
            tuning("{scale_rows: [{name: base, BLOCK: 4}]}"),
            "BLOCK",
            "unknown key 'BLOCK'; known: blocks, name, options, when",
        ),
        (
            tuning("{scale_rows: [{name: base, options: {num_warp: 4}}]}"),
            "num_warp",
            "op 'scale': config 'base': 'num_warp' is no compiler option; did you mean 'num_warps'?",
        ),
        (
            tuning("{scale_rows: [{name: base, when: rows >, blocks: {WIDTH: 1}}]}"),
            "when",
            "op 'scale': 'rows >' is not an expression: invalid syntax",
        ),
        (
            tuning("{scale_rows: [{when: rowz > 1, blocks: {WIDTH: 1}}]}"),
            "when",
            "op 'scale': 'rowz > 1' uses undefined name 'rowz'; did you mean 'rows'?",
        ),
        (
            tuning("{scale_rows: [{name: base, when: rows > 1}]}"),
            "when",
            "op 'scale': the last config ('base') must serve every call: it has no `when`",
        ),
        (
            tuning("{scale_rows: [{name: always, blocks: {WIDTH: 1}}]}"),
            "{name",
            "op 'scale': config 'always' has no `when`, so those after it are never used",
        ),
        (
            tuning("{scale_rows: [{name: base, blocks: {WIDTH: 1}}, {name: base, blocks: {WIDTH: 2}}]}"),
            "scale_rows",
            "op 'scale': two configs have one name (base, base)",
        ),
        (
            tuning("{}", "gfx942, gfx94"),
            "gfx94]",
            "tuning.0.arch.1: 'gfx94' is no architecture; did you mean 'gfx942'?",
        ),
        (tuning("{}") + tuning("{}", "gfx90a, gfx942 ")[8:], "gfx942 ", "another entry has gfx942 too"),
        (
            tuning("{}").replace("    modelled: {by: registers}\n", ""),
            "arch",
            "tuning.0: configs are either `measured`, `modelled` or `published`",
        ),
        (
            tuning("{}") + "    published: {source: a table}\n",
            "arch",
            "tuning.0: configs are either `measured`, `modelled` or `published`",
        ),
        (
            tuning("{}").replace("modelled: {by: registers}", "measured: {device: MI300X, date: '2026', figure: x}"),
            "date",
            "tuning.0.measured.date: '2026' is no date: YYYY-MM-DD, in quotes",
        ),
    ],
)
def test_a_fault_in_a_tuning_file_has_its_place_there(tmp_path, text, fragment, message):
    path = tune(tmp_path, text)
    with pytest.raises(ManifestError) as caught:
        contract(tmp_path, EVERYTHING)
    assert caught.value.messages == (f"{position(path, fragment)}: {message}",)


def test_a_fault_of_the_manifests_part_of_a_tuned_config_stays_there(tmp_path):
    tune(tmp_path, tuning("{scale_rows: [{name: wide, blocks: {WIDTH: 1}}]}"))
    with pytest.raises(ManifestError) as caught:
        contract(tmp_path, EVERYTHING.replace("when: cols > 32", "when: colz > 32"))
    assert caught.value.messages == (
        f"{position(tmp_path / 'm.yaml', 'when: colz')}: op 'scale': 'colz > 32' uses undefined name 'colz'; "
        "did you mean 'cols'?",
    )


def test_no_yaml_in_a_tuning_file(tmp_path):
    path = tune(tmp_path, "tuning: [\n")
    with pytest.raises(ManifestError) as caught:
        contract(tmp_path, EVERYTHING)
    assert caught.value.messages[0].startswith(f"{path}:2:1: not valid YAML: ")
