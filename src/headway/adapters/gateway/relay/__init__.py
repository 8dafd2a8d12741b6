"""Relays requests for upstream models: bytes in, bytes out, nothing serialised again."""
