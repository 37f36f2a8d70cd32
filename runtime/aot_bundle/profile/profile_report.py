"""Profile reports: text of at most 100 columns, and JSON data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from aot_bundle.text_table import table_lines
from aot_emulator.isa.disassembly import disassemble
from aot_emulator.profile.counters import InstructionCount, LoopCount, Summary
from aot_emulator.profile.peaks import ridge
from aot_emulator.profile.traffic import AccessCount
from aot_runtime.formats import axis_values_text, size_text

from .profile_call import LaunchProfile, Profile, TensorTraffic

WIDTH = 100
_RESOURCES = {"matrix": "matrix units", "valu": "vector ALU issue", "lds": "LDS", "memory": "device memory"}
_CAVEAT = (
    "Counts are those of this code object, executed in emulation. Times are lower bounds from the data",
    "sheet's peak rates: no launch takes less, most take longer, and none was measured.",
)

# Text


def profile_lines(profile: Profile, by_instruction: bool = False) -> list[str]:
    """Return the report as lines, with tables for each launch: classes, matrix, memory, LDS, loops and bounds."""
    lines = [f"{profile.op} of bundle {profile.bundle} on {profile.arch.title} ({profile.arch.name})", *_CAVEAT]
    for launch in profile.launches:
        lines += ["", *_launch(profile, launch, by_instruction)]
    if not profile.launches:
        lines.append("nothing to do: no kernel is launched")
    elif len(profile.launches) > 1:
        total = sum(launch.bounds.seconds for launch in profile.launches)
        lines += ["", f"all {len(profile.launches)} launches, one after another: at least {_time(total)}"]
    return lines


def _launch(profile: Profile, launch: LaunchProfile, by_instruction: bool) -> Iterator[str]:
    total = launch.statistics.summary
    yield from _heading(launch)
    yield from _section("tensors", _tensor_rows(launch), (2, 3, 4, 5, 6))
    yield from _section("wave-instructions", _kind_rows(total), (1, 2))
    yield from _section("matrix instructions", _matrix_rows(total), (1, 2))
    line = profile.arch.peaks.line_bytes
    yield from _section(f"device memory, cache lines of {line} bytes", _memory_rows(total, line), range(1, 7))
    yield from _section("LDS, passes of a clock", _lds_rows(total), range(1, 6))
    yield from _section("loops, self without inner loops", _loop_rows(launch.statistics.loops), range(2, 9))
    yield from _bounds(profile, launch)
    if by_instruction:
        yield from _section("by instruction", _instruction_rows(launch), range(1, 5))


def _heading(launch: LaunchProfile) -> Iterator[str]:
    variant, statistics = launch.decision.variant, launch.statistics
    settings = ", ".join(f"{name}={value}" for name, value in launch.settings.items())
    yield f"launch {launch.decision.index}: {variant.symbol}, {'aligned' if variant.aligned else 'general'}"
    yield f"  {axis_values_text(variant.axis_values)}"
    yield f"  config {launch.config}{': ' if settings else ''}{settings}"
    grid = " x ".join(map(str, launch.decision.grid))
    yield (
        f"  grid {grid} = {_plural(statistics.workgroups, 'workgroup')} of "
        f"{_plural(variant.num_warps, 'wavefront')} of {variant.warp_size}; LDS {size_text(variant.lds_bytes)}"
    )
    used = variant.resources
    limit = f", limited by {used.occupancy_limit}" if used.occupancy_limit else ""
    yield (
        f"  {used.vgprs} VGPRs ({used.agprs} of them AGPRs), {used.sgprs} SGPRs, {used.scratch_bytes} bytes of "
        f"scratch: {used.waves_per_simd:g} waves a SIMD{limit}"
    )


def _section(title: str, rows: Sequence[Sequence[str]], right: Sequence[int]) -> Iterator[str]:
    if len(rows) > 1:
        yield f"  {title}"
        yield from (_cut(f"    {line}") for line in table_lines(rows, right))


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _tensor_rows(launch: LaunchProfile) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("TENSOR", "DTYPE AND SHAPE", "BYTES", "READ", "OF IT", "WRITTEN", "OF IT")]
    for tensor in launch.tensors:
        shape = f"{tensor.layout.dtype} {list(tensor.layout.shape)}"
        rows.append((tensor.name, shape, f"{tensor.nbytes:,}", *_reached(tensor.read, tensor.nbytes),
                     *_reached(tensor.written, tensor.nbytes)))  # fmt: skip
    if any(launch.other):
        rows.append(("(other)", "workspaces, constants", "", f"{launch.other[0]:,}", "", f"{launch.other[1]:,}", ""))
    return rows


def _reached(count: int, whole: int) -> tuple[str, str]:
    return (f"{count:,}", f"{count / whole:.0%}") if count and whole else ("-", "")


def _kind_rows(total: Summary) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("CLASS", "COUNT", "SHARE", "MOST FREQUENT")]
    for kind, count in total.kinds.most_common():
        rows.append((_name(kind), f"{count:,}", f"{count / total.instructions:.1%}", _frequent(total, kind)))
    rows.append(("all", f"{total.instructions:,}", "", ""))
    return rows


def _frequent(total: Summary, kind: str) -> str:
    names = [name for name, _ in total.by_kind[kind].most_common()]
    shown: list[str] = []
    while names and len(", ".join([*shown, names[0]])) <= 50:
        shown.append(names.pop(0))
    return ", ".join(shown) + (", …" if names else "")


def _matrix_rows(total: Summary) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("TYPE OF A", "COUNT", "FLOPS")]
    return rows + [(kind, f"{count:,}", f"{total.flops[kind]:,}") for kind, count in total.matrix.items()]


def _memory_rows(total: Summary, line_bytes: int) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("ACCESS", "ACCESSES", "LANES", "BYTES", "DISTINCT", "LINES", "EFFICIENCY")]
    for (space, action), count in total.accesses.items():
        if space != "lds":
            efficiency = count.efficiency(line_bytes)
            rows.append((f"{space} {action}", f"{count.accesses:,}", f"{count.lanes:,}", f"{count.bytes:,}",
                         f"{count.distinct_bytes:,}", f"{count.lines:,}" if count.lines else "-",
                         "-" if efficiency is None else f"{efficiency:.0%}"))  # fmt: skip
    return rows


def _lds_rows(total: Summary) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("ACCESS", "ACCESSES", "BYTES", "PASSES", "OF CONFLICTS", "SHARE")]
    for (space, action), count in total.accesses.items():
        if space == "lds":
            rows.append((f"lds {action}", f"{count.accesses:,}", f"{count.bytes:,}", f"{count.passes:,}",
                         f"{count.conflicts:,}", f"{count.conflicts / count.passes:.0%}"))  # fmt: skip
    return rows


def _loop_rows(loops: Sequence[LoopCount]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [
        ("HEADER", "DEPTH", "ENTERED", "TRIPS", "SELF", "AN ITERATION", "VALU", "MATRIX", "CONFLICTS")
    ]
    for loop in loops:
        own, times = loop.own, max(loop.iterations, 1)
        conflicts = sum(count.conflicts for count in own.accesses.values())
        rows.append((f"{'  ' * (loop.loop.depth - 1)}{loop.loop.header:#x}", str(loop.loop.depth), f"{loop.entered:,}",
                     f"{loop.trip_count:.4g}", f"{own.instructions:,}", f"{own.instructions / times:.4g}",
                     f"{own.kinds['valu'] / times:.4g}", f"{own.kinds['matrix'] / times:.4g}",
                     f"{conflicts / times:.4g}"))  # fmt: skip
    return rows


def _instruction_rows(launch: LaunchProfile) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("PC", "EXECUTED", "BYTES", "LINES", "CONFLICTS", "INSTRUCTION")]
    depths = {loop.loop.header: loop.loop.depth for loop in launch.statistics.loops}
    for found in launch.statistics.by_instruction:
        access = _all_accesses(found)
        touched = (
            f"{access.bytes:,}" if access.bytes else "",
            f"{access.lines:,}" if access.lines else "",
            f"{access.conflicts:,}" if access.passes else "",
        )
        indent = "| " * (depths[found.loop] if found.loop is not None else 0)
        rows.append(
            (f"{found.instruction.pc:#x}", f"{found.executions:,}", *touched, indent + disassemble(found.instruction))
        )
    return rows


def _all_accesses(found: InstructionCount) -> AccessCount:
    total = AccessCount()
    for count in found.accesses.values():
        total.add(count)
    return total


def _bounds(profile: Profile, launch: LaunchProfile) -> Iterator[str]:
    bounds, work = launch.bounds, launch.statistics.work
    peaks, busy = profile.arch.peaks, min(profile.arch.num_cus, work.workgroups)
    yield (
        f"  lower bounds of time, {busy} of {profile.arch.num_cus} compute units busy at {peaks.clock / 1e9:g} GHz, "
        f"{peaks.bandwidth / 1e12:.3g} TB/s"
    )
    asked = {
        "matrix": f"{sum(work.matrix.values()):,} flops",
        "valu": f"{work.valu:,} instructions, and {work.transcendental:,} transcendental ones",
        "lds": f"{work.lds_passes:,} passes",
        "memory": f"{work.memory_bytes:,} distinct bytes read and written",
    }
    rows = [
        (_RESOURCES[name], _time(time), "longest" if name == bounds.limit else "", asked[name])
        for name, time in bounds.times.items()
        if time
    ]
    yield from (f"    {line}" for line in table_lines(rows, (1,)))
    yield from _intensity(profile, launch)


def _intensity(profile: Profile, launch: LaunchProfile) -> Iterator[str]:
    work = launch.statistics.work
    if work.matrix and work.memory_bytes:
        most = max(work.matrix, key=lambda kind: work.matrix[kind])
        yield (
            f"    arithmetic intensity {sum(work.matrix.values()) / work.memory_bytes:.1f} flops a byte; the whole "
            f"device's ridge for {most} is at {ridge(profile.arch, most):.0f}"
        )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.3f} us"


def _name(kind: str) -> str:
    return {"salu": "SALU", "valu": "VALU"}.get(kind, kind.replace("_", " ").replace("lds", "LDS"))


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# Data


def profile_data(profile: Profile, by_instruction: bool = False) -> dict[str, Any]:
    """Return the profile as JSON-compatible data. Times are in seconds, sizes in bytes."""
    return {
        "bundle": profile.bundle,
        "id": profile.id,
        "op": profile.op,
        "arch": profile.arch.name,
        "product": profile.arch.title,
        "measured": False,
        "launches": [_launch_data(profile, launch, by_instruction) for launch in profile.launches],
    }


def _launch_data(profile: Profile, launch: LaunchProfile, by_instruction: bool) -> dict[str, Any]:
    variant, statistics = launch.decision.variant, launch.statistics
    line_bytes = profile.arch.peaks.line_bytes
    data = {
        "launch": launch.decision.index,
        "kernel": variant.symbol,
        "point": variant.axis_values,
        "aligned": variant.aligned,
        "config": launch.config,
        "settings": dict(launch.settings),
        "grid": launch.decision.grid,
        "workgroups": statistics.workgroups,
        "wavefronts": statistics.wavefronts,
        "waves_per_simd": variant.resources.waves_per_simd,
        "occupancy_limit": variant.resources.occupancy_limit,
        "line_bytes": line_bytes,
        "tensors": {tensor.name: _tensor_data(tensor) for tensor in launch.tensors},
        "memory_bytes": statistics.work.memory_bytes,
        "other_memory": {"read": launch.other[0], "written": launch.other[1]},
        **_summary_data(statistics.summary, line_bytes),
        "loops": [_loop_data(loop, line_bytes) for loop in statistics.loops],
        "lower_bounds": {**launch.bounds.times, "limit": launch.bounds.limit},
    }
    if by_instruction:
        data["by_instruction"] = [_instruction_data(found) for found in statistics.by_instruction]
    return data


def _tensor_data(tensor: TensorTraffic) -> dict[str, Any]:
    return {
        "dtype": tensor.layout.dtype,
        "shape": tensor.layout.shape,
        "strides": tensor.layout.strides,
        "nbytes": tensor.nbytes,
        "read": tensor.read,
        "written": tensor.written,
    }


def _summary_data(summary: Summary, line_bytes: int) -> dict[str, Any]:
    return {
        "instructions": summary.instructions,
        "classes": dict(summary.kinds.most_common()),
        "mnemonics": dict(summary.mnemonics.most_common()),
        "transcendental": summary.transcendental,
        "matrix": {
            kind: {"instructions": count, "flops": summary.flops[kind]} for kind, count in summary.matrix.items()
        },
        "accesses": {
            f"{space}_{action}": _access_data(count, line_bytes) for (space, action), count in summary.accesses.items()
        },
    }


def _access_data(count: AccessCount, line_bytes: int) -> dict[str, Any]:
    return {**asdict(count), "conflicts": count.conflicts, "efficiency": count.efficiency(line_bytes)}


def _loop_data(loop: LoopCount, line_bytes: int) -> dict[str, Any]:
    return {
        "header": loop.loop.header,
        "parent": loop.loop.parent,
        "depth": loop.loop.depth,
        "entered": loop.entered,
        "iterations": loop.iterations,
        "trip_count": loop.trip_count,
        **_summary_data(loop.own, line_bytes),
    }


def _instruction_data(found: InstructionCount) -> dict[str, Any]:
    return {
        "pc": found.instruction.pc,
        "mnemonic": found.instruction.mnemonic,
        "text": disassemble(found.instruction),
        "executions": found.executions,
        "loop": found.loop,
        "accesses": {
            f"{space}_{action}": asdict(count) | {"conflicts": count.conflicts}
            for (space, action), count in found.accesses.items()
        },
    }
