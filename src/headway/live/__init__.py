"""The wall-clock driver of the ring: processes, sockets, engines, configuration. Performs effects, decides nothing."""
