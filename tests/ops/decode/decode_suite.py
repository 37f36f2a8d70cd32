"""Decoding against the fp64 references: tests for any device, of which a test module gives the fixtures.

`with_vectors` is a bundle that has selftest cases.
"""

from tests.ops.decode.append import *  # noqa: F403
from tests.ops.decode.contiguous import *  # noqa: F403
from tests.ops.decode.flex import *  # noqa: F403
from tests.ops.decode.graphs import *  # noqa: F403
from tests.ops.decode.int4 import *  # noqa: F403
from tests.ops.decode.latent import *  # noqa: F403
from tests.ops.decode.paged import *  # noqa: F403
from tests.ops.decode.refusals import *  # noqa: F403
