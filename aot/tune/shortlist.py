"""Shortlists: spaces of a run's best candidates, for those who have the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aot.manifest.schema import ModelledSpec
from aot.manifest.yaml_text import flow, flow_mapping, given

from .best_configs import Choice, shortlisted
from .calls import TunedCall
from .candidates import Candidate

_OF_CALL = ("shapes", "dims", "given", "dtypes", "strides", "innermost", "unaligned", "scalars")


def shortlist_text(
    op: str, manifest: str, arch: str, origin: ModelledSpec, choices: Sequence[Choice], calls: Sequence[TunedCall],
    count: int, schema: str,
) -> str:  # fmt: skip
    """Return the text of a shortlist. count: limit on candidates of a group; schema: path of the schema."""
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# Candidates for {arch}, to be timed on it: aotbuild tune --shortlist FILE --device hip",
        f"op: {op}",
        f"manifest: {flow(manifest)}",
        f"modelled: {flow_mapping(given(origin.model_dump()), 10)}",
        "groups:",
    ]
    for choice in choices:
        if choice.ranking:
            lines += _group(choice, arch, [calls[call] for call in choice.calls], shortlisted(choice, count))
    return "\n".join(lines) + "\n"


def _group(choice: Choice, arch: str, calls: Sequence[TunedCall], candidates: Sequence[Candidate]) -> Iterator[str]:
    group = choice.group
    yield f"  - name: {group.name}"
    yield f"    launch: {group.launch_name}"
    yield f"    arch: [{arch}]"
    if group.spec.when != "":
        yield f"    when: {flow(group.spec.when)}"
    yield "    candidates:"
    for candidate in candidates:
        yield f"      - {flow_mapping(_candidate(candidate), 8)}"
    yield "    calls:"
    for call in calls:
        yield f"      - {flow_mapping(_call(call), 8)}"


def _candidate(candidate: Candidate) -> dict[str, Any]:
    blocks = {name: value for name, value in candidate.chosen if name in candidate.blocks}
    options = {name: value for name, value in candidate.chosen if name in candidate.options}
    return given({"blocks": blocks, "options": options})


def _call(call: TunedCall) -> dict[str, Any]:
    spec = call.spec.model_dump()
    words = given({name: spec[name] for name in _OF_CALL})
    count = {"count": call.spec.count} if call.spec.count > 1 else {}
    return {**words, **count, **given({"content": dict(call.content)})}
