"""Who made a bundle: signatures over its index, and policies that say whose are accepted.

A signature is a file of its own in the bundle's folder. It is checked on the bytes of the index, before they are
decoded.
"""
