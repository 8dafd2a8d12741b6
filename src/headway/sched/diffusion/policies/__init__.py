"""Order policies of a diffusion replica, one per file. Add a file and its test; nothing else lists them."""
