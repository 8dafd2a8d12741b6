"""A look at a pool, for tests."""

import msgspec


class PoolLook(msgspec.Struct, frozen=True):
    at_ns: int
    pool: str
    up: int
    kv_used: float
    busy: float
    waiting: float = 0.0
    running: float = 0.0
