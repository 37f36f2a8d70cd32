"""Matrix instructions: MFMA of CDNA and WMMA of RDNA."""
