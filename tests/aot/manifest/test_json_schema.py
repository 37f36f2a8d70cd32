from pathlib import Path

import pytest

from aot.manifest.json_schema import MODELS, json_schema, schema_file

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", MODELS)
def test_the_shipped_schemas_are_up_to_date(name: str):
    assert schema_file(name).read_text() == json_schema(name), "run `python -m aot.manifest.json_schema`"


def test_our_files_name_their_schema_and_bundle():
    paths = sorted((ROOT / "manifests").rglob("*.yaml"))
    assert len(paths) > 20
    for path in paths:
        text = path.read_text()
        kind = {"tuning": "tuning", "spaces": "space", "shortlists": "space"}.get(path.parent.name, "manifest")
        modeline, _, schema = text.partition("\n")[0].partition(" $schema=")
        assert modeline == "# yaml-language-server:" and (path.parent / schema).resolve() == schema_file(kind), path
        assert kind != "manifest" or f"\nbundle: {path.stem}\n" in text
