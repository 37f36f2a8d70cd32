"""What wavefronts see: their registers, device memory, LDS and scratch, and who watches them."""
