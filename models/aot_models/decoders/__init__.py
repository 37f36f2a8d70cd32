"""Models: figures from config.json, one file per family, and a decoder that runs any of them on a device."""
