"""Matrix instructions: CDNA's MFMA and RDNA's WMMA."""
