"""Pacing policies, one per file: when to plan the next step. Add a file and its test; nothing else lists them."""
