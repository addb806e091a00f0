"""Sends copies of the RoCEv2 connection requests in a capture, from another UDP port, and random datagrams.

forged_requests.py CAPTURE: waits until the capture, which a device may still write, has requests. Then sends their copies, with
the ICRC of the new port, and 5,000 random datagrams/s until SIGTERM. Prints how many it has sent, and the number of refusals in
the capture.
"""

import os
import signal
import socket
import struct
import sys
import time
import zlib

DATAGRAMS_PER_S = 5000
COPIES_PER_S = 50
CONNECT_REQUEST, CONNECT_REJECT = 0x0010, 0x0012
MAD = 12 + 8  # behind the BTH and the DETH
BEGINNING = 1 << 16  # bytes of the capture that have the requests for the session


def messages(path, attribute, size=-1):
    """Returns source, destination and UDP payload without ICRC of CM messages in a capture of IPv4 in Ethernet frames."""
    with open(path, "rb") as file:
        data = file.read(size)
    found, at = [], 24
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        frame = data[at + 16 : at + 16 + length]
        at += 16 + length
        ip, payload = frame[14:], frame[14 + 28 : -4]
        is_mad = len(payload) == MAD + 256 and payload[MAD] == 1
        if is_mad and struct.unpack_from(">H", payload, MAD + 16)[0] == attribute:
            found.append((ip[12:16], ip[16:20], payload))
    return found


def requests(path):
    """Returns the requests from the host that sent the first one; those to this host are the server's."""
    found = messages(path, CONNECT_REQUEST, BEGINNING)
    return [packet for packet in found if packet[0] == found[0][0]]


def with_icrc(source, destination, port, payload):
    """Returns the payload with the ICRC of a packet from this port: CRC-32 over headers whose changing fields are ones."""
    length = len(payload) + 4
    masked = bytes([0xFF] * 8)
    masked += struct.pack(">BBHHHBBH", 0x45, 0xFF, 28 + length, 0, 0x4000, 0xFF, 17, 0xFFFF) + source + destination
    masked += struct.pack(">HHHH", port, 4791, 8 + length, 0xFFFF)
    masked += payload[:4] + b"\xff" + payload[5:]
    return payload + struct.pack("<I", zlib.crc32(masked))


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    while not (found := requests(sys.argv[1])):
        time.sleep(0.02)
    source, destination = socket.inet_ntoa(found[0][0]), socket.inet_ntoa(found[0][1])
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((source, 0))
    port = sender.getsockname()[1]
    copies, datagrams, started = 0, 0, time.monotonic()
    try:
        while True:
            elapsed = time.monotonic() - started
            while copies < COPIES_PER_S * elapsed:
                if copies % COPIES_PER_S == 0:
                    found = requests(sys.argv[1])
                packet = found[copies % len(found)]
                sender.sendto(with_icrc(packet[0], packet[1], port, packet[2]), (destination, 4791))
                copies += 1
            while datagrams < DATAGRAMS_PER_S * elapsed:
                sender.sendto(os.urandom(64), (destination, 4791))
                datagrams += 1
            time.sleep(0.001)
    finally:
        refusals = len(messages(sys.argv[1], CONNECT_REJECT))
        print(f"{copies} copies and {datagrams} random datagrams from port {port}, {refusals} refusals")


main()
