"""Write configs into the text of a tuning file. The rest of the text, comments included, stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from aot.manifest.loading import Tuning
from aot.manifest.schema import ConfigSpec
from aot.manifest.yaml_text import flow, flow_mapping, given

HEAD = "# yaml-language-server: $schema={schema}\n"
BY = "aotbuild tune"


def is_measured(tuning: Tuning | None, arch: str, launch: str, config: str) -> bool:
    """Tell if a tuning file has a config for an architecture that was timed on a device."""
    found = tuning.entry(arch) if tuning else None
    if found is None:
        return False
    entry = found[1]
    named = [item for item in entry.launches.get(launch, []) if item.name == config]
    return any(item.measured or (entry.measured and not item.modelled) for item in named)


def config_members(config: ConfigSpec) -> dict[str, Any]:
    """Members of a config in a tuning file, in their order."""
    origins = {name: getattr(config, name) for name in ("measured", "modelled")}
    return {
        **given({"name": config.name, "when": config.when, "from_kernel": config.from_kernel}),
        **given({"blocks": config.blocks, "options": config.options, "fitted": config.fitted}),
        **{name: given(origin.model_dump()) for name, origin in origins.items() if origin is not None},
    }


def with_config(text: str, arch: str, launch: str, config: ConfigSpec, schema: str) -> str:
    """Return the text of a tuning file with a config added for a launch and an architecture.

    It replaces the config of its name; a new name goes in front. An entry for several architectures is split.

    Args:
        text: a valid tuning file, or empty.
        schema: path of the schema, for the head of a new file.
    """
    members = config_members(config)
    if not text.strip():
        text = HEAD.format(schema=schema) + "tuning:\n" + _entry(arch, launch, members, config, 2)
        return text
    entries = _member(_composed(text), "tuning")
    assert isinstance(entries, SequenceNode)
    entry = next((item for item in entries.value if arch in _archs(item)), None)
    if entry is None:
        return _with_entry(text, entries, arch, _entry(arch, launch, members, config, entries.start_mark.column))
    if len(_archs(entry)) > 1:
        return with_config(_divided(text, entries, entry, arch), arch, launch, config, schema)
    launches = _member(entry, "launches")
    assert isinstance(launches, MappingNode)
    configs = next((value for key, value in launches.value if key.value == launch), None)
    if configs is None:
        return _with_launch(text, launches, launch, members)
    assert isinstance(configs, SequenceNode)
    for item in configs.value:
        if _name(item) == config.name:
            end = item.start_mark.index + len(_own(text, item))
            return text[: item.start_mark.index] + flow_mapping(members, item.start_mark.column) + text[end:]
    return _in_front(text, configs, members)


def _composed(text: str) -> Node:
    return YAML(typ="safe", pure=True).compose(text)


def _member(node: Node, key: str) -> Node:
    assert isinstance(node, MappingNode)
    return next(value for name, value in node.value if name.value == key)


def _name(config: Node) -> str:
    assert isinstance(config, MappingNode)
    return next((str(value.value) for key, value in config.value if key.value == "name"), "")


def _archs(entry: Node) -> list[str]:
    return [str(item.value) for item in _member(entry, "arch").value]


def _own(text: str, node: Node) -> str:
    """The text of a node: in block style without the comments and blank lines that come behind it."""
    lines = text[node.start_mark.index : node.end_mark.index].rstrip().splitlines(keepends=True)
    while lines and lines[-1].strip()[:1] in ("", "#"):
        lines.pop()
    return "".join(lines).rstrip()


def _entry(arch: str, launch: str, members: Mapping[str, Any], config: ConfigSpec, column: int) -> str:
    origin = "measured" if config.measured else "modelled"
    said = config_members(config)[origin] | {"figure": "Each config says it."}
    inner = " " * (column + 2)
    lines = [
        f"{' ' * column}- arch: [{arch}]",
        f"{inner}{origin}: {flow_mapping(said, column + 4 + len(origin))}",
        f"{inner}launches:",
        f"{inner}  {launch}:",
        f"{inner}    - {flow_mapping(members, column + 8)}",
    ]
    return "\n".join(lines) + "\n"


def _with_entry(text: str, entries: SequenceNode, arch: str, lines: str) -> str:
    """Entries are in the order of their first architectures, as far as they were before."""
    behind = next((item for item in entries.value if _archs(item)[0] > arch), None)
    if behind is not None:
        at = text.rindex("\n", 0, behind.start_mark.index) + 1
        return text[:at] + lines + text[at:]
    last = entries.value[-1]
    end = last.start_mark.index + len(_own(text, last))
    return f"{text[:end]}\n{lines.rstrip()}{text[end:] or chr(10)}"


def _divided(text: str, entries: SequenceNode, entry: Node, arch: str) -> str:
    own, archs = _own(text, entry), _member(entry, "arch")
    start = entry.start_mark.index
    before, after = archs.start_mark.index - start, archs.end_mark.index - start
    alone = own[:before] + flow([arch]) + own[after:]
    others = own[:before] + flow([name for name in _archs(entry) if name != arch]) + own[after:]
    gap = "\n" + " " * entries.start_mark.column + "-" + " " * (entry.start_mark.column - entries.start_mark.column - 1)
    return text[:start] + alone + gap + others + text[start + len(own) :]


def _with_launch(text: str, launches: MappingNode, launch: str, members: Mapping[str, Any]) -> str:
    column = launches.start_mark.column
    if launches.flow_style:
        at = launches.start_mark.index + 1
        comma = f",\n{' ' * (column + 1)}" if launches.value else ""
        return f"{text[:at]}{launch}: [{flow_mapping(members, column + len(launch) + 4)}]{comma}{text[at:]}"
    at = launches.start_mark.index
    lines = f"{launch}:\n{' ' * (column + 2)}- {flow_mapping(members, column + 4)}\n{' ' * column}"
    return text[:at] + lines + text[at:]


def _in_front(text: str, configs: SequenceNode, members: Mapping[str, Any]) -> str:
    if configs.flow_style:
        at = configs.start_mark.index + 1
        comma = f",\n{' ' * (configs.start_mark.column + 1)}" if configs.value else ""
        return f"{text[:at]}{flow_mapping(members, configs.start_mark.column + 1)}{comma}{text[at:]}"
    first, dash = configs.value[0], configs.start_mark.column
    at, column = first.start_mark.index, first.start_mark.column
    gap = f"\n{' ' * dash}-{' ' * (column - dash - 1)}"
    return text[:at] + flow_mapping(members, column) + gap + text[at:]
