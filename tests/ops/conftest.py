from tests.support.planted_faults import planted  # noqa: F401  (a fixture)
