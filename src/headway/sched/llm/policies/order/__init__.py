"""The order policies of the LLM machine: one file each."""
