"""What only real speech can show about the streaming engine, measured on a bundle: see bench/results."""
