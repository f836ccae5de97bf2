"""Ports of servers that are told where to listen seconds before they do."""

import random
import socket

NOBODY_S = range(20_001, 32_768)
"""Above those that NeMo Gym and Ray's workers choose from, below those that the kernel gives to connections."""
ATTEMPTS = 100


def free_port() -> int:
    """A loopback port that nobody uses, out of a range that nobody else picks from.

    Raises:
        OSError: none is free.
    """
    for port in random.SystemRandom().sample(NOBODY_S, ATTEMPTS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"{ATTEMPTS} ports from {NOBODY_S.start} to {NOBODY_S.stop - 1} are taken")
