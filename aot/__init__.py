"""The builder: manifests in, bundles of ahead-of-time compiled code objects out."""

from aot_runtime import __version__ as __version__
