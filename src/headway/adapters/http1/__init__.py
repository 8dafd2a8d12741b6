"""HTTP/1.1 on the wire, for both sides of a relay: strict heads, chunked bodies, and one timer for many deadlines."""
