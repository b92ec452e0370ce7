import socket
import subprocess
import sys

from lakebroker_testing.ports import free_ports

OTHER = """
import random, sys
from lakebroker_testing import ports
first, choice = [int(sys.argv[1])], random.choice  # the claimed port is tried first: none is left to print
random.choice = lambda among: first.pop() if first else choice(among)
print(*ports.free_ports(1), *first)
"""


def test_a_port_is_taken_for_others_that_look_for_one_and_free_for_a_server() -> None:
    (claimed,) = free_ports(1)
    found = subprocess.run(
        [sys.executable, "-c", OTHER, str(claimed)], capture_output=True, text=True, check=True
    )
    (other,) = found.stdout.split()
    assert int(other) != claimed
    with socket.create_server(("127.0.0.1", claimed)), socket.create_server(("127.0.0.1", claimed - 2)):
        pass
