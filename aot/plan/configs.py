"""The configs, derived numbers and alternatives of an op: those of its manifest, overlaid by its tuning file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from aot.manifest.loading import Manifest
from aot.manifest.schema import ArchTuningSpec, ConfigSpec, LaunchSpec, Value
from aot.manifest.yamlfile import Key, ManifestError, YamlFile
from aot_runtime.contract.expressions import nearest


def launch_name(launch: LaunchSpec) -> str:
    """Return the name of a launch in tuning files."""
    return launch.name or launch.kernel.rpartition(":")[2]


Entry = tuple[YamlFile, tuple[Key, ...], ArchTuningSpec]
"""(tuning file of an op, path of an entry in it, the entry)."""
_NONE = ArchTuningSpec.model_construct(launches={})


def _tuning_entry(manifest: Manifest, op: str, arch: str) -> Entry:
    """Return the entries of the op's tuning file for an architecture; empty if there are none."""
    tuning = manifest.tuning(op)
    found = tuning.entry(arch) if tuning else None
    return (tuning.file, *found) if tuning and found else (manifest.file, (), _NONE)


Numbers = Literal["derived", "alternatives"]
"""Keys of an op with named numbers, which a tuning file may replace."""
_NOUNS: dict[Numbers, str] = {"derived": "derived number", "alternatives": "number with alternatives"}


def tuned_derived(manifest: Manifest, op: str, arch: str) -> dict[str, Value]:
    """Return the derived numbers of an op, in the manifest's order. Raises `ManifestError` for a bad tuning file."""
    entry = _tuning_entry(manifest, op, arch)
    base, own = manifest.spec.ops[op].derived, entry[2].derived
    _check_known("derived", op, base, own, entry)
    return {**base, **own}


def tuned_alternatives(manifest: Manifest, op: str, arch: str) -> dict[str, list[Value]]:
    """Return the alternatives of an op, in the manifest's order. Raises `ManifestError` for a bad tuning file."""
    entry = _tuning_entry(manifest, op, arch)
    base, own = manifest.spec.ops[op].alternatives, entry[2].alternatives
    _check_known("alternatives", op, base, own, entry)
    return {**base, **own}


def _check_known(key: Numbers, op: str, base: Collection[str], own: Collection[str], entry: Entry) -> None:
    file, path, _ = entry
    for name in own:
        if name not in base:
            raise file.error((*path, key, name), f"no {_NOUNS[key]} '{name}' in op '{op}'{nearest(name, base)}")


def number_error(manifest: Manifest, op: str, arch: str, path: tuple[Key, ...], message: str) -> ManifestError:
    """Return an error about a number of an op, at its place in the tuning file or the manifest.

    Args:
        path: its key of the op, its name, and further keys.
    """
    file, above, entry = _tuning_entry(manifest, op, arch)
    if path[1] in getattr(entry, str(path[0])):
        return file.error((*above, *path), f"op '{op}': {message}")
    return manifest.error(("ops", op, *path), f"op '{op}': {message}")


def launch_configs(manifest: Manifest, op: str, arch: str) -> list[list[ConfigSpec]]:
    """Return the configs of each launch of an op, each with a `name`. Raises `ManifestError` for an invalid tuning
    file.
    """
    laid = laid_configs(manifest, op, arch)
    return [[_with_kernel(manifest, op, arch, index, entry) for entry in entries] for index, entries in enumerate(laid)]


def laid_configs(manifest: Manifest, op: str, arch: str) -> list[list[ConfigSpec]]:
    """Return `launch_configs` before configs that come from a kernel's decorator are filled in."""
    file, path, tuning = _tuning_entry(manifest, op, arch)
    path, overlay = (*path, "launches"), tuning.launches
    launches = manifest.spec.ops[op].launches
    names = [launch_name(launch) for launch in launches]
    if len(set(names)) != len(names):
        raise manifest.error(
            ("ops", op, "launches"),
            f"op '{op}': two launches have the same name ({', '.join(names)}); give them a `name`",
        )
    for name, entries in overlay.items():
        if name not in names:
            raise file.error((*path, name), f"no launch '{name}' in op '{op}'{nearest(name, names)}")
        given = [entry.name for entry in entries if entry.name]
        if len(set(given)) != len(given):
            raise file.error((*path, name), f"op '{op}': two configs have the same name ({', '.join(given)})")
    return [
        overlay_configs(launch.configs or [ConfigSpec.model_validate({})], overlay.get(name, []))
        for name, launch in zip(names, launches, strict=True)
    ]


def _with_kernel(manifest: Manifest, op: str, arch: str, index: int, entry: ConfigSpec) -> ConfigSpec:
    if entry.from_kernel is None:
        return entry
    kernel = manifest.spec.ops[op].launches[index].kernel
    known = manifest.kernel_configs.get(kernel, ())
    if entry.from_kernel >= len(known):
        has = f"has {len(known)} configs, from 0 on" if known else "has no configs: it has no @triton.autotune"
        message = f"config '{entry.name}': '{kernel}' {has}; from_kernel is {entry.from_kernel}"
        raise config_error(manifest, op, arch, index, entry.name, "from_kernel", message)
    found = known[entry.from_kernel]
    return _changed(found, entry).model_copy(update={"name": entry.name, "when": entry.when})


def overlay_configs(base: Sequence[ConfigSpec], overlay: Sequence[ConfigSpec]) -> list[ConfigSpec]:
    """Lay a tuning file's entries over a manifest's configs; each then has a name.

    An entry whose `name` the manifest has changes that config. Other entries are put in front, in order.
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
    update: dict[str, Any] = {
        "blocks": {**entry.blocks, **change.blocks},
        "options": {**entry.options, **change.options},
        "fitted": {**entry.fitted, **change.fitted},
    }
    if change.from_kernel is not None:
        update["from_kernel"] = change.from_kernel
    return entry.model_copy(update=update if change.when == "" else {**update, "when": change.when})


def config_error(
    manifest: Manifest, op: str, arch: str, index: int, config: str, key: str, message: str
) -> ManifestError:
    """Return an error about a key of a config, at its place in the tuning file or the manifest."""
    launch = manifest.spec.ops[op].launches[index]
    file, path, tuning = _tuning_entry(manifest, op, arch)
    tuned = tuning.launches.get(launch_name(launch), [])
    groups: tuple[tuple[YamlFile, tuple[Key, ...], list[ConfigSpec], str], ...] = (
        (file, (*path, "launches", launch_name(launch)), tuned, "tuned"),
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
    """Return the path of a key in an entry: at the top, or in its blocks or options; empty if it has no such key."""
    if key in entry.model_fields_set:
        return (key,)
    return next(((group, key) for group in ("blocks", "options") if key in getattr(entry, group)), ())
