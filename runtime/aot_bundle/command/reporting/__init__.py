"""The page that `aotbundle report` writes."""
