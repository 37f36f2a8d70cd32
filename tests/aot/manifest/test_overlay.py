import pytest

from aot.manifest.yamlfile import ManifestError
from aot.plan.contract import overlay_configs
from tests.aot.manifest.projects import EVERYTHING, contract, position

BASE = [{"name": "wide", "M": 4, "when": "a"}, {"M": 2}]


@pytest.mark.parametrize(
    "overlay, expected",
    [
        ([], [{"name": "wide", "M": 4, "when": "a"}, {"name": "config1", "M": 2}]),
        (
            [{"name": "wide", "M": 8, "num_warps": 2}],
            [{"name": "wide", "M": 8, "when": "a", "num_warps": 2}, {"name": "config1", "M": 2}],
        ),
        ([{"name": "config1", "M": 1}], [{"name": "wide", "M": 4, "when": "a"}, {"name": "config1", "M": 1}]),
        (
            [{"M": 9, "when": "b"}, {"name": "config1", "M": 1}, {"name": "new", "M": 7, "when": "c"}],
            [
                {"name": "tuned0", "M": 9, "when": "b"},
                {"name": "new", "M": 7, "when": "c"},
                {"name": "wide", "M": 4, "when": "a"},
                {"name": "config1", "M": 1},
            ],
        ),
    ],
)
def test_entries_by_name_change_and_others_go_in_front(overlay, expected):
    assert overlay_configs(BASE, overlay) == expected
    assert BASE == [{"name": "wide", "M": 4, "when": "a"}, {"M": 2}]


def tune(tmp_path, text: str, arch: str = "gfx942"):
    path = tmp_path / "tuning" / arch / "scale.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_tuning_file_is_laid_over_the_manifest_for_its_architecture_alone(tmp_path):
    tune(
        tmp_path,
        "doc: by hand\nlaunches:\n  scale_rows:\n    - {name: base, WIDTH: 1, num_warps: 2}\n"
        "    - {name: tall, when: rows > 9, WIDTH: 16}\n",
    )
    configs = contract(tmp_path, EVERYTHING).launches[0].configs
    assert [(item.name, item.values, item.options, item.when) for item in configs] == [
        ("tall", {"WIDTH": 16}, {}, "rows > 9"),
        ("wide", {"WIDTH": 4}, {"num_warps": 8}, "cols > 32"),
        ("base", {"WIDTH": 1}, {"num_warps": 2}, ""),
    ]
    assert [item.name for item in contract(tmp_path, EVERYTHING, "gfx950").launches[0].configs] == ["wide", "base"]


@pytest.mark.parametrize(
    "text, fragment, message",
    [
        (
            "launches:\n  scale_row: []\n",
            "scale_row",
            "no launch 'scale_row' in op 'scale'; did you mean 'scale_rows'?",
        ),
        ("launchs: {}\nlaunches: {}\n", "launchs", "unknown key 'launchs'; did you mean 'launches'?"),
        ("doc: x\n", "doc", "the manifest: the key 'launches' is missing"),
        (
            "launches:\n  scale_rows:\n    - {WIDTH: [4]}\n",
            "WIDTH",
            "launches.scale_rows.0.WIDTH: expected true or false or a whole number or a number or text (given: a list)",
        ),
        (
            "launches:\n  scale_rows:\n    - {name: base, WIDTH: 1, when: rows >}\n",
            "when",
            "op 'scale': 'rows >' is not an expression: invalid syntax",
        ),
        (
            "launches:\n  scale_rows:\n    - {when: rowz > 1, WIDTH: 1}\n",
            "when",
            "op 'scale': 'rowz > 1' uses undefined name 'rowz'; did you mean 'rows'?",
        ),
        (
            "launches:\n  scale_rows:\n    - {name: base, when: rows > 1}\n",
            "when",
            "op 'scale': the last config ('base') must serve every call: it has no `when`",
        ),
        (
            "launches:\n  scale_rows:\n    - {name: always, WIDTH: 1}\n",
            "{name",
            "op 'scale': config 'always' has no `when`, so those after it are never used",
        ),
        (
            "launches:\n  scale_rows:\n    - {name: base, WIDTH: 1}\n    - {name: base, WIDTH: 2}\n",
            "scale_rows",
            "op 'scale': two configs have one name (base, base)",
        ),
    ],
)
def test_a_fault_in_a_tuning_file_has_its_place_there(tmp_path, text, fragment, message):
    path = tune(tmp_path, text)
    with pytest.raises(ManifestError) as caught:
        contract(tmp_path, EVERYTHING)
    assert caught.value.messages == (f"{position(path, fragment)}: {message}",)


def test_a_fault_of_the_manifests_part_of_a_tuned_config_stays_there(tmp_path):
    tune(tmp_path, "launches:\n  scale_rows:\n    - {name: wide, WIDTH: 1}\n")
    with pytest.raises(ManifestError) as caught:
        contract(tmp_path, EVERYTHING.replace("when: cols > 32", "when: colz > 32"))
    assert caught.value.messages == (
        f"{position(tmp_path / 'm.yaml', 'when: colz')}: op 'scale': 'colz > 32' uses undefined name 'colz'; "
        "did you mean 'cols'?",
    )


def test_no_yaml_in_a_tuning_file(tmp_path):
    path = tune(tmp_path, "launches: [\n")
    with pytest.raises(ManifestError) as caught:
        contract(tmp_path, EVERYTHING)
    assert caught.value.messages[0].startswith(f"{path}:2:1: not valid YAML: ")
