"""Families of diffusers pipelines, one per file: what differs between their stages."""
