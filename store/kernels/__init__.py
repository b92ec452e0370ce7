"""What is compiled, and where its machine code is kept."""
