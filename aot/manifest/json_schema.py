"""The JSON schemas of manifests, tuning files, spaces and calls files, for editors.

`python -m aot.manifest.json_schema` writes them.

Every shipped file names its schema in a modeline, `# yaml-language-server: $schema=<path>`.
"""

from __future__ import annotations

import json
from pathlib import Path

from .calls import CallsSpec
from .schema import ManifestSpec, Spec, TuningSpec
from .spaces import SpaceSpec

MODELS: dict[str, type[Spec]] = {
    "manifest": ManifestSpec, "tuning": TuningSpec, "calls": CallsSpec, "space": SpaceSpec,
}  # fmt: skip


def schema_file(name: str) -> Path:
    """Return the path of the schema of a key of `MODELS`."""
    return Path(__file__).with_name(f"{name}.schema.json")


def json_schema(name: str) -> str:
    """Return the JSON schema of a key of `MODELS`, as text."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:aotbuild:{name}"}
    return json.dumps({**head, **MODELS[name].model_json_schema()}, indent=1) + "\n"


if __name__ == "__main__":
    for name in MODELS:
        schema_file(name).write_text(json_schema(name), encoding="utf-8")
