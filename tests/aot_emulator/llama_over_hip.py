"""examples/llama.py in a process over the double of libamdhip64, whose launches the emulator carries out."""

from __future__ import annotations

from llama import main

from tests.support.emulated_launches import EmulatedLaunches


def continue_text(*command: str) -> None:
    """Run the command; then print how many graphs were launched."""
    launches = EmulatedLaunches()
    main(command)
    print(launches.double.calls("hipGraphLaunch"), "graphs")
