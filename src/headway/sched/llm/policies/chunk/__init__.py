"""The chunk policies of the LLM machine: one file each."""
