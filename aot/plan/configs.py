"""The configs of a launch: those of the manifest, overlaid by what the op's tuning file has for an architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aot.manifest.loading import Manifest
from aot.manifest.schema import ConfigSpec, LaunchSpec
from aot.manifest.yamlfile import Key, ManifestError, YamlFile
from aot_runtime.contract.expressions import nearest


def launch_name(launch: LaunchSpec) -> str:
    """What tuning files call a launch."""
    return launch.name or launch.kernel.rpartition(":")[2]


def tuned_configs(
    manifest: Manifest, op: str, arch: str
) -> tuple[YamlFile, tuple[Key, ...], Mapping[str, list[ConfigSpec]]]:
    """(tuning file of an op, the place of its launches in it, configs by launch); nothing by launch without one."""
    tuning = manifest.tuning(op)
    found = tuning.entry(arch) if tuning else None
    if tuning is None or found is None:
        return manifest.file, (), {}
    path, entry = found
    return tuning.file, (*path, "launches"), entry.launches


def launch_configs(manifest: Manifest, op: str, arch: str) -> list[list[ConfigSpec]]:
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
        given = [entry.name for entry in entries if entry.name]
        if len(set(given)) != len(given):
            raise file.error((*path, name), f"op '{op}': two configs have one name ({', '.join(given)})")
    return [
        overlay_configs(launch.configs or [ConfigSpec.model_validate({})], overlay.get(name, []))
        for name, launch in zip(names, launches, strict=True)
    ]


def overlay_configs(base: Sequence[ConfigSpec], overlay: Sequence[ConfigSpec]) -> list[ConfigSpec]:
    """Lay a tuning file's entries over a manifest's configs; each then has a name.

    An entry whose `name` the manifest has changes what it says of that config; any other is put in front, in order.
    """
    named = _named(base, "config")
    names = [entry.name for entry in named]
    changes = {entry.name: entry for entry in overlay if entry.name in names}
    added = [entry for entry in _named(overlay, "tuned") if entry.name not in names]
    return added + [_changed(entry, changes[entry.name]) if entry.name in changes else entry for entry in named]


def _named(entries: Sequence[ConfigSpec], default: str) -> list[ConfigSpec]:
    return [
        entry.model_copy(update={"name": entry.name or f"{default}{position}"})
        for position, entry in enumerate(entries)
    ]


def _changed(entry: ConfigSpec, change: ConfigSpec) -> ConfigSpec:
    update = {"blocks": {**entry.blocks, **change.blocks}, "options": {**entry.options, **change.options}}
    return entry.model_copy(update=update if change.when == "" else {**update, "when": change.when})


def config_error(
    manifest: Manifest, op: str, arch: str, index: int, config: str, key: str, message: str
) -> ManifestError:
    """An error about a key of a config, at its place in the tuning file or in the manifest."""
    launch = manifest.spec.ops[op].launches[index]
    file, launches, overlay = tuned_configs(manifest, op, arch)
    tuned = overlay.get(launch_name(launch), [])
    groups: tuple[tuple[YamlFile, tuple[Key, ...], list[ConfigSpec], str], ...] = (
        (file, (*launches, launch_name(launch)), tuned, "tuned"),
        (manifest.file, ("ops", op, "launches", index, "configs"), launch.configs, "config"),
    )
    named = [
        (where, (*path, i), _place(entry, key))
        for where, path, entries, default in groups
        for i, entry in enumerate(entries)
        if (entry.name or f"{default}{i}") == config
    ]
    where, path, place = next((found for found in named if found[2]), named[0])
    return where.error((*path, *place), f"op '{op}': {message}")


def _place(entry: ConfigSpec, key: str) -> tuple[str, ...]:
    """Where an entry has a key: as its own, or among its blocks or options; nowhere: empty."""
    if key in entry.model_fields_set:
        return (key,)
    return next(((group, key) for group in ("blocks", "options") if key in getattr(entry, group)), ())
