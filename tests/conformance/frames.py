"""Frames that an adapter of mlx5's sent, as its network interface counts them for the whole port
(ethtool(8))."""

import ctypes
import fcntl
import socket
import struct

SIOCETHTOOL = 0x8946
# enum ethtool_stringset and the commands of linux/ethtool.h.
STATISTICS = 1
NAMES = 0x1B
VALUES = 0x1D
SET_SIZE = 0x37
NAME_LEN = 32
COUNTERS = [b"tx_vport_unicast_packets", b"tx_vport_multicast_packets"]


def ask(interface, head, data_len):
    """What the driver answers behind the head of a command."""
    buffer = ctypes.create_string_buffer(head + bytes(data_len), len(head) + data_len)
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
    return buffer.raw[len(head) :]


def sent(interface):
    answer = ask(interface, struct.pack("IIQ", SET_SIZE, 0, 1 << STATISTICS), 4)
    (count,) = struct.unpack("I", answer)
    names = ask(interface, struct.pack("III", NAMES, STATISTICS, count), count * NAME_LEN)
    names = [names[at : at + NAME_LEN].rstrip(b"\0") for at in range(0, len(names), NAME_LEN)]
    values = struct.unpack(f"{count}Q", ask(interface, struct.pack("II", VALUES, count), count * 8))
    return sum(values[names.index(counter)] for counter in COUNTERS)
