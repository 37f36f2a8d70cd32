"""Time from the start of a process to its first new token, beside transformers.

    aotbuild --arch sm_90 manifests/llama.yaml && python benchmarks/first_token.py dist/llama-sm_90

A random checkpoint is written to a temporary folder, so its files are in the page cache. Each process reads it,
continues a short text by one token, and prints it: `aot_models.generate`, and transformers if it is installed.
Processes take turns after a warm-up of each. Medians are shown, from the start of a process to its output.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from measure import interleaved, line, machine, median, versions

from aot_models.random_checkpoint import FAMILIES, SIZES, random_tensors, settings, write_checkpoint

PROMPT = "Once upon a time"
PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "cuda-bindings", "hip-python")
THEIRS = """
import sys

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

folder, prompt = sys.argv[1:]
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
ids = tokenizer(prompt, return_tensors="pt").input_ids.cuda()
model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").cuda()
with torch.no_grad():
    out = model.generate(ids, max_new_tokens=1, do_sample=False, pad_token_id=0)
print(repr(tokenizer.decode(out[0])), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/llama.yaml for this GPU")
    parser.add_argument("--family", choices=FAMILIES, default="llama", help="(default: %(default)s)")
    parser.add_argument("--size", choices=SIZES, default="1b", help="(default: %(default)s)")
    parser.add_argument("--device", help="(default: the first GPU of the bundle's kind)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    options = parser.parse_args()
    device = ["--device", options.device] if options.device else []
    print(f"{machine()}; {versions(*PACKAGES)}")
    with tempfile.TemporaryDirectory() as folder:
        found = settings(options.size, options.family)
        write_checkpoint(Path(folder), found, random_tensors(found, alike=True))
        generate = ["-m", "aot_models.generate", folder, str(options.bundle), PROMPT, "--tokens", "1", "--json"]
        ways = {"aot_models.generate": [*generate, *device]}
        if "transformers" in versions("transformers"):
            ways["transformers"] = ["-c", THEIRS, folder, PROMPT]
        taken = interleaved({name: partial(seconds_to_line, command) for name, command in ways.items()}, options.rounds)
    print(line(f"{options.family} {options.size}", ["seconds"]))
    for name, seconds in taken.items():
        print(line(name, [f"{median(seconds):.2f}"]))


def seconds_to_line(arguments: list[str]) -> float:
    """Return the seconds from the start of a Python process to its first line."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout and run.stderr
        found = run.stdout.readline()
        taken = time.perf_counter() - start
        said = run.communicate()[1]
    if not found or run.returncode:
        sys.exit(f"first_token.py: a process failed: {said}")
    return taken


if __name__ == "__main__":
    main()
