"""The configs of a launch: those of the manifest, overlaid by what the op's tuning file has for an architecture."""

from __future__ import annotations

from collections.abc import Mapping

from aot.manifest.loading import Manifest
from aot.manifest.schema import LaunchSpec
from aot.manifest.yamlfile import Key, ManifestError, YamlFile
from aot_runtime.contract import records
from aot_runtime.contract.expressions import nearest

ConfigEntry = dict[str, records.Value]

CONFIG_KEYS = ("name", "when")
"""Keys of a config entry that are neither constexprs nor compiler options."""


def launch_name(launch: LaunchSpec) -> str:
    """What tuning files call a launch."""
    return launch.name or launch.kernel.rpartition(":")[2]


def tuned_configs(
    manifest: Manifest, op: str, arch: str
) -> tuple[YamlFile, tuple[Key, ...], Mapping[str, list[ConfigEntry]]]:
    """(tuning file of an op, the place of its launches in it, configs by launch); nothing by launch without one."""
    tuning = manifest.tuning(op)
    found = tuning.entry(arch) if tuning else None
    if tuning is None or found is None:
        return manifest.file, (), {}
    path, entry = found
    return tuning.file, (*path, "launches"), entry.launches


def launch_configs(manifest: Manifest, op: str, arch: str) -> list[list[ConfigEntry]]:
    """The entries of each launch of an op, each with a `name`. Raises `ManifestError` for a wrong tuning file."""
    file, path, overlay = tuned_configs(manifest, op, arch)
    launches = manifest.spec.ops[op].launches
    names = [launch_name(launch) for launch in launches]
    if len(set(names)) != len(names):
        raise manifest.error(
            ("ops", op, "launches"), f"op '{op}': two launches have one name ({', '.join(names)}); give them a `name`"
        )
    for name, entries in overlay.items():
        if name not in names:
            raise file.error((*path, name), f"no launch '{name}' in op '{op}'{nearest(name, names)}")
        given = [str(entry["name"]) for entry in entries if "name" in entry]
        if len(set(given)) != len(given):
            raise file.error((*path, name), f"op '{op}': two configs have one name ({', '.join(given)})")
    return [
        overlay_configs(launch.configs, overlay.get(name, [])) for name, launch in zip(names, launches, strict=True)
    ]


def overlay_configs(base: list[ConfigEntry], overlay: list[ConfigEntry]) -> list[ConfigEntry]:
    """Lay a tuning file's entries over a manifest's configs.

    An entry whose `name` the manifest has changes that entry's keys; any other entry is put in front, in order.
    """
    named = [{"name": f"config{i}", **entry} for i, entry in enumerate(base)]
    names = [entry["name"] for entry in named]
    changes = {entry.get("name"): entry for entry in overlay if entry.get("name") in names}
    added = [{"name": f"tuned{i}", **entry} for i, entry in enumerate(overlay) if entry.get("name") not in names]
    return added + [{**entry, **changes.get(entry["name"], {})} for entry in named]


def config_error(
    manifest: Manifest, op: str, arch: str, index: int, config: str, key: str, message: str
) -> ManifestError:
    """An error about a key of a config, at its place in the tuning file or in the manifest."""
    launch = manifest.spec.ops[op].launches[index]
    file, launches, overlay = tuned_configs(manifest, op, arch)
    tuned = overlay.get(launch_name(launch), [])
    groups: tuple[tuple[YamlFile, tuple[Key, ...], list[ConfigEntry], str], ...] = (
        (file, (*launches, launch_name(launch)), tuned, "tuned"),
        (manifest.file, ("ops", op, "launches", index, "configs"), launch.configs, "config"),
    )
    named = [
        (where, (*path, i, key), key in entry)
        for where, path, entries, default in groups
        for i, entry in enumerate(entries)
        if str(entry.get("name", f"{default}{i}")) == config
    ]
    where, path, _ = next((place for place in named if place[2]), named[0])
    return where.error(path, f"op '{op}': {message}")
