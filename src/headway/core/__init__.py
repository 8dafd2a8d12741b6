"""The vocabulary of the ring: every type that crosses a ring border. Pure; imports only `core`."""
