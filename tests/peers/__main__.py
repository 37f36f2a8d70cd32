"""`python -m tests.peers` writes docs/explanation/coverage.md, and prints it."""

from tests.peers.coverage import PAGE, page
from tests.peers.grids import read_suites
from tests.peers.rules import contracts

text = page(read_suites(), contracts())
PAGE.write_text(text)
print(text)
