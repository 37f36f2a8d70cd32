"""`aotbundle isa`: the table of code, and requirements with their exit status."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import aotbundle


def test_the_code_of_each_variant(rows_bundle: Path):
    lines = aotbundle("isa", rows_bundle).output.splitlines()
    assert "softmax:" in lines
    titles = "VARIANT ALIGNED CONFIG SPILLS SCRATCH LDS LOOP LOADS MATRIX"
    assert " ".join(next(line for line in lines if "VARIANT" in line).split()) == titles
    aligned = next(line for line in lines if "BLOCK=4096" in line and " yes " in line and "MASK" not in line)
    assert aligned.split()[-2:] == ["128", "-"]
    data = json.loads(aotbundle("isa", rows_bundle, "--op", "softmax", "--json").output)
    assert {row["code_bytes"] > 0 and row["matrix"] for row in data} == {""}
    assert {row["load_bits"] for row in data} >= {128}


def test_requirements_decide_the_exit_status(rows_bundle: Path):
    met = aotbundle("isa", rows_bundle, "--require", "spills == 0", "--require", "waves_per_simd > 0")
    assert (met.exit_code, met.output) == (0, "every variant meets the requirements\n")
    unmet = aotbundle("isa", rows_bundle, "--require", "load_bits == 128 or aligned")
    assert unmet.exit_code == 1 and "general" in unmet.output and " aligned, " not in unmet.output
    found = json.loads(aotbundle("isa", rows_bundle, "--require", "load_bits == 128 or aligned", "--json").output)
    assert len(found) == len(unmet.output.splitlines()) - 2
    assert all(row["values"]["aligned"] is False and row["values"]["load_bits"] < 128 for row in found)


def test_wrong_usage(rows_bundle: Path):
    wrong = aotbundle("isa", rows_bundle, "--require", "spils == 0")
    assert wrong.exit_code == 2 and "did you mean 'spills'" in wrong.stderr
    assert "no op 'sofmax'; did you mean 'softmax'" in aotbundle("isa", rows_bundle, "--op", "sofmax").stderr
