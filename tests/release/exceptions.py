"""A table of command lines that are not run as shown, each with its reason. An entry that matches no command is an
error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    REPLACE = "replace"  # each match of the pattern, by `value`
    APPEND = "append"  # `value`, to the end of the command
    SKIP = "skip"
    REFUSED = "refused"  # it has to end with an error that `value`, a regular expression, is found in


@dataclass(frozen=True)
class Rule:
    """A rule for commands in which the pattern, a regular expression, is found. Entries apply in the order of the
    table."""

    pattern: str
    action: Action
    reason: str
    value: str = ""


@dataclass(frozen=True)
class Treated:
    """A command as it is run."""

    text: str
    skipped: str = ""  # the reason
    refused: str = ""  # what the error has to say
    used: frozenset[Rule] = frozenset()


NO_GPU = r"no usable GPU|sees no GPU|GPUs need .* cannot be loaded|without a GPU, the device"
NO_GPU_OR_TORCH = f"{NO_GPU}|torch is needed"

TABLE = (
    # Placeholders, and what stands for what cannot be had here
    Rule("<name>|<bundle>", Action.REPLACE, "a manifest of the reader's own", "rows"),
    Rule("<op>", Action.REPLACE, "an op of the reader's own", "silu_mul"),
    Rule(r"(?<= )manifest\.yaml", Action.REPLACE, "a manifest of the reader's own", "manifests/memory.yaml"),
    Rule("(?<=aot_models.random_checkpoint )FOLDER", Action.REPLACE, "a folder of the reader's own", "random"),
    Rule("/mnt/team/aotbuild", Action.REPLACE, "a disk that machines share", "team-cache"),
    Rule("/opt/bundles/", Action.REPLACE, "where an image has its bundles", "dist/"),
    Rule("Llama-3.2-1B|CHECKPOINT", Action.REPLACE, "a checkpoint: one of random numbers", "checkpoint"),
    Rule(r"(?<=dist/)(\w+)-sm_90", Action.REPLACE, "built whole is gfx942", r"\1-gfx942"),
    Rule(r"^(aotbuild .*--scheduler) tcp://127\.0\.0\.1:8786", Action.REPLACE, "is done on a cluster that ends with it",
         r"python -m tests.release.on_cluster \1 ADDRESS --cache-dir cluster-cache"),
    # What would take too long
    Rule("^aotbuild .*--arch (sm_90|mi300x,h100)", Action.APPEND, "for what is built whole is gfx942", "--dry-run"),
    Rule("^python benchmarks/emulator.py", Action.APPEND, "for it takes minutes",
         "--size 256 --seqlen 256 --rounds 1"),
    Rule(r"\bpytest .*(tests/|\bmodels\b)", Action.APPEND, "for .ci/run runs the tests", "--collect-only -q"),
    Rule("(?<=^aotbundle stubs dist )--install$", Action.REPLACE, "would change the Python environment of the check",
         "-o types"),
    # What is not run
    Rule(r"^pip (install|wheel) ", Action.SKIP, "would change the Python environment of the check, or asks an index"),
    Rule(r"^python -m tests\.fuzz\.seeding$", Action.SKIP, "would change the checkout's own seeds"),
    Rule(r"^python -m build\b", Action.SKIP, "asks an index for setuptools"),
    Rule(r"^aotbundle selftest rows ", Action.SKIP, "needs what pip would have installed; the part `packages` does it"),
    Rule("^dask (scheduler|worker) ", Action.SKIP, "does not end; builds on a cluster are run with both"),
    Rule(r"^docker ", Action.SKIP, "needs a container engine; tests/docs look at the Dockerfile"),
    Rule("^(cmake|build/softmax/softmax) ", Action.SKIP,
         "needs ROCm; tests/aot/c builds with CMake, and tests/docs runs the program, over a double"),
    Rule(r"^(ruff|mypy)\b", Action.SKIP, ".ci/run runs the linters"),
    Rule(r"^mkdocs serve", Action.SKIP, "does not end"),
    Rule(r"^pytest( -n auto)?$", Action.SKIP, ".ci/run runs the test suite"),
    Rule(r"^python -m tests\.release$", Action.SKIP, "is this check"),
    Rule(r"^python (ours|raw|triton_jit)\.py ", Action.SKIP, "is started by benchmarks/coldstart.py, which is run"),
    Rule("^python benchmarks/timing/validate.py", Action.SKIP, "needs published tables, which are not shipped"),
    Rule("^python benchmarks/gfx942.py", Action.SKIP, "fetches kernels from GitHub"),
    Rule("--shared-cache s3://", Action.SKIP, "needs a bucket; tests/aot/test_s3_cache.py builds with one"),
    Rule("^aotbundle emulate ", Action.SKIP, "needs ROCm's libraries; tests/rocm runs programs with it"),
    Rule("^pytest --on rocm$", Action.SKIP, "fetches packages; .ci/run runs a part of it"),
    Rule(r"^python -m aot_emulator\.kfd\.server ", Action.SKIP, "is started by aotbundle emulate"),
    Rule(r"^python (-m benchmarks\.rocm|(product|attention|random_numbers)\.py) ", Action.SKIP,
         "fetches AMD's libraries: hundreds of megabytes"),
    Rule(r"^python -m tests\.peers read ", Action.SKIP, "needs a checkout of another library's tests"),
    Rule(r" python tensile\.py ", Action.SKIP, "needs AMD's generator; tests/rocm/test_generator.py has its parts"),
    Rule(r"^python -m tests\.rocm ", Action.SKIP, "fetches packages; tests/rocm does"),
    Rule(r"^aotbuild (capture -o |run --no-compile|install-cache (?!--help)|--arch .*\bkernels\.jsonl)", Action.SKIP,
         "needs a Triton program that runs; tests/docs/test_no_compile.py and tests/aot/capture have one"),
    # What ends with the error that there is no GPU, or that torch, which is measured beside, is not there
    Rule("^aotbundle selftest dist/[^ ]+$", Action.REFUSED, "runs the ops", NO_GPU),
    Rule("^aotbundle diff dist/rows-gfx942 half/", Action.REFUSED, "its status is 1 where bundles differ",
         r"\d+ variants, now \d+"),
    Rule("^aotbundle bench memory dist/", Action.REFUSED, "measures the device", NO_GPU),
    Rule("^aotbundle doctor( dist/.*)?( --json)?$", Action.REFUSED, "its status is 1 where no GPU is usable", NO_GPU),
    Rule("^python (examples/attention_numpy.py|-m aot_models.(generate|perplexity)) (?!.* emulator$)", Action.REFUSED,
         "runs ops", NO_GPU),
    Rule("^python examples/fmha.py (?!.*-device=emulator)", Action.REFUSED, "runs an op", NO_GPU),
    Rule("^python benchmarks/(launch|coldstart|attention|llama|first_token).py ", Action.REFUSED, "measures the device",
         NO_GPU),
    Rule("^python benchmarks/copies.py", Action.REFUSED, "measures the device", NO_GPU),
    Rule("^aotbuild tune .*(--device hip|--costs .*--device)", Action.REFUSED, "measures the device", NO_GPU),
    Rule("^python benchmarks/(rows|decode|mla|gemm|moe|chunks|random_calls).py (?!.*--modelled)", Action.REFUSED,
         "measures the device", NO_GPU_OR_TORCH),
)  # fmt: skip


def treat(command: str) -> Treated:
    """Return the treatment of one command."""
    text, skipped, refused, used = command, "", "", set()
    for entry in TABLE:
        if not re.search(entry.pattern, text):
            continue
        used.add(entry)
        match entry.action:
            case Action.REPLACE:
                text = re.sub(entry.pattern, entry.value, text)
            case Action.APPEND:
                text = f"{text} {entry.value}"
            case Action.SKIP:
                skipped = entry.reason
            case Action.REFUSED:
                refused = entry.value
    return Treated(text, skipped, refused, frozenset(used))


def unused(commands: Iterable[str]) -> list[Rule]:
    """Return the entries that are for none of these commands."""
    used = frozenset().union(*(treat(command).used for command in commands))
    return [entry for entry in TABLE if entry not in used]
