"""Shell completion: the answers to click's scripts for bash, zsh and fish."""

import os
import re
import subprocess
import sys

import pytest

# What is typed so far, with a | where the cursor is at a new word; some of what is offered.
CASES = {
    "--ar": {"--arch"},
    "--arch gfx90": {"gfx908", "gfx90a"},
    "--arch gfx942,sm_8": {"gfx942,sm_80", "gfx942,sm_86"},
    "--arch gfx942,MI300": {"gfx942,mi300a", "gfx942,mi300x"},
    "check --arch h1": {"h100"},
    "cac": {"cache"},
    "cache |": {"ls", "prune"},
    "cache prune --max": {"--max-size"},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str):
    for typed, offered in CASES.items():
        *done, last = ["aotbuild", *typed.split()]
        last = "" if last == "|" else last
        words = {"fish": "\n".join(done)}.get(shell, " ".join([*done, last]))
        variables = {"COMP_WORDS": words, "COMP_CWORD": last if shell == "fish" else str(len(done))}
        environment = {**os.environ, **variables, "_AOTBUILD_COMPLETE": f"{shell}_complete"}
        command = [sys.executable, "-m", "aot"]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert offered <= set(re.split(r"[\n,\t]", found)) | set(re.split(r"\n|plain,", found)), (typed, found)
