"""Webhooks: signed messages to addresses that clients name, kept away from the operator's own network."""
