"""Run AMD's generator without a compiler of HIP: kernels become assembly, and the tables are written.

    PYTHONPATH=HIPBLASLT/tensilelite python tensile.py ASSEMBLER LOGIC OUTPUT

TensileLite looks for ROCm, tries instructions of all its architectures with the assembler, and ends with an error if a
file that it lists is missing. Here it has the one architecture, and no code objects are made: `generator.py` does that.
"""

from __future__ import annotations

import os
import sys

OPTIONS = (
    "--no-enumerate", "--architecture", "gfx942", "--merge-files", "--separate-architectures",
    "--lazy-library-loading", "--generate-sources-and-exit", "--code-object-version", "V4", "--jobs", "1",
)  # fmt: skip


def main() -> None:
    assembler, logic, output = sys.argv[1:]
    os.environ["TENSILE_ROCM_ASSEMBLER_PATH"] = assembler
    from Tensile import Common, TensileCreateLibrary  # type: ignore[import-not-found]

    stop = TensileCreateLibrary.printExit

    def stop_unless_missing(message: str, *file: str) -> None:
        if not file:  # of missing files alone, the name is given apart
            stop(message)

    TensileCreateLibrary.printExit = stop_unless_missing
    Common.globalParameters["SupportedISA"] = [(9, 4, 2)]
    sys.argv[1:] = [*OPTIONS, logic, output, "HIP"]
    TensileCreateLibrary.TensileCreateLibrary()


if __name__ == "__main__":
    main()
