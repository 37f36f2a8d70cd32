"""The command `aotbundle`."""
