"""The subcommands of `aotbuild`, and the types of its options."""
