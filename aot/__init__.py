"""The builder: manifests in, bundles of ahead-of-time compiled code objects out."""
