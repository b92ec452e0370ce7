import socket
import subprocess
import sys

from lakebroker_testing.ports import free_ports

OTHER = """
import random, sys
from lakebroker_testing import ports
ports._PORTS = [int(each) for each in sys.argv[1:]]
print(ports.free_ports(1)[0])
"""


def test_a_port_is_taken_for_others_that_look_for_one_and_free_for_a_server() -> None:
    claimed, freed = free_ports(1)[0], socket.socket()
    freed.bind(("127.0.0.1", 0))
    other = freed.getsockname()[1]
    freed.close()
    found = subprocess.run(
        [sys.executable, "-c", OTHER, str(claimed), str(other)], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == other
    with socket.create_server(("127.0.0.1", claimed)), socket.create_server(("127.0.0.1", claimed - 2)):
        pass
