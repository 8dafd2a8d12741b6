"""Headway serves LLMs and diffusion models; the code that decides in production runs in its simulator."""

__version__ = "0.1.0"
