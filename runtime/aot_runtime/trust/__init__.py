"""Trust in bundles: signatures over the index, and policies that list the accepted signers.

A signature is a separate file of the bundle. It is verified over the index's bytes before they are decoded.
"""

VARIABLE = "AOTBUNDLE_TRUST"
"""Environment variable: path of the default policy file."""
