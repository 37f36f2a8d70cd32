"""Tools for bundles, and the command `aotbundle`: inspect, verify, pack, sign, package and compare bundles."""
