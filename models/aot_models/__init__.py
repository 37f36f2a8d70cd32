"""Language models in numpy on bundles of `aot_runtime`, and helpers that prepare arguments of the ops.

- `aot_models.generate`, `aot_models.perplexity` and `aot_models.random_checkpoint` are commands: run them as modules.
- `checkpoints` reads published models, `decoders` runs them on a device, `generation` turns prompts into text.
- `quantise`, `kv_quantise`, `float8` and `masks` need numpy and ml_dtypes only.
"""
