import socket

import pytest

from gym_bridge import ports


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    port = ports.free_port()
    assert port in ports.NOBODY_S
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr(ports, "NOBODY_S", range(port, port + 1))
        monkeypatch.setattr(ports, "ATTEMPTS", 1)
        with pytest.raises(OSError, match="are taken"):
            ports.free_port()
    assert ports.free_port() == port
