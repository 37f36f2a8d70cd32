"""`python -m tests.peers` writes docs/explanation/coverage.md, and prints it; `read SUITE FOLDER` compares a suite's
checkout with the data."""

import sys
from pathlib import Path

from tests.peers.coverage import PAGE, page
from tests.peers.grids import read_suites
from tests.peers.read import FOLDERS, differences, read_suite
from tests.peers.rules import contracts

match sys.argv[1:]:
    case ["read", suite, _] if suite not in FOLDERS:
        sys.exit(f"unknown suite {suite!r}; there are {', '.join(FOLDERS)}")
    case ["read", _, folder] if not Path(folder).is_dir():
        sys.exit(f"no folder {folder}")
    case ["read", suite, folder]:
        print(*differences(read_suite(suite, Path(folder)), read_suites().get(suite, [])), sep="\n")
    case []:
        text = page(read_suites(), contracts())
        PAGE.write_text(text)
        print(text)
    case _:
        sys.exit("usage: python -m tests.peers [read SUITE FOLDER]")
