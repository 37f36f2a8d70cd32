import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from hip_double.double import hip_double  # noqa: F401  (a fixture)
