"""Decodes the frames of Trunkline in a capture, written from docs/book/src/why/wire.md alone.

Usage: decode.py CAPTURE ADDRESS

Prints one JSON object: how many frames the node with this address has sent and received, by kind, those in bundles one by one; how many of them
announce a large message; the sizes of its requests and of their replies, each as the bytes of the frame and those of its
packets from BTH to ICRC; the times left of its requests; the entries of metadata; and what is wrong with the rest. Exit status 1 if anything is.
"""

import ipaddress
import json
import struct
import sys

KINDS = {
    0x01: "credit", 0x02: "fin", 0x03: "settings", 0x04: "bundle", 0x05: "handshake", 0x10: "drained", 0x20: "cancel", 0x23: "number", 0x30: "reply", 0x40: "request",
    0x41: "one-way", 0x42: "open", 0x21: "data", 0x22: "reset", 0x31: "accept", 0x32: "window", 0x33: "end",
}
METADATA, SHAPES, KEY_BYTES = 3, 8, set(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
# Bytes of the contents before what has a length of its own.
FIXED = {
    "cancel": 8, "number": 8, "data": 8, "reset": 8, "accept": 8, "reply": 16, "request": 16, "one-way": 16, "open": 16, "window": 16, "end": 16,
}
CRITICAL, ANNOUNCES, TIME_LEFT, PHASE, FROM_CALLER = 1, 2, 4, 8, 16
# RoCEv2: the services and operations of a packet that carry messages.
RC, XRC = 0, 5
FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM = range(6)


def packets(data):
    """(source, destination, RoCE packet) of each record of a capture with Ethernet headers."""
    order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<"}[data[:4]]
    at = 24
    while at < len(data):
        length = struct.unpack_from(order + "I", data, at + 8)[0]
        frame = data[at + 16:at + 16 + length]
        at += 16 + length
        ether_type, ip = struct.unpack_from(">H", frame, 12)[0], frame[14:]
        if ether_type == 0x0800:
            size, source, destination, udp = (ip[0] & 15) * 4, ip[12:16], ip[16:20], ip[9] == 17
        else:
            size, source, destination, udp = 40, ip[8:24], ip[24:40], ip[6] == 17
        # A device's capture has nothing but RoCE; its further shards and their peers use ports of their own.
        if udp:
            length = struct.unpack_from(">H", ip, size + 4)[0]
            yield ipaddress.ip_address(source), ipaddress.ip_address(destination), ip[size + 8:size + length]


def messages(data):
    """(source, destination, message, bytes of its packets) of each SEND, each once, however often its packets were
    sent."""
    seen, open_messages = set(), {}
    for source, destination, packet in packets(data):
        service, operation = packet[0] >> 5, packet[0] & 31
        if service not in (RC, XRC) or operation > ONLY_IMM:
            continue
        lane = (source, destination, packet[5:8])
        psn = int.from_bytes(packet[9:12], "big")
        if (lane, psn) in seen:
            continue
        seen.add((lane, psn))
        start = 12 + (4 if service == XRC else 0) + (4 if operation in (LAST_IMM, ONLY_IMM) else 0)
        payload = packet[start:len(packet) - 4 - (packet[1] >> 4 & 3)]
        if operation in (ONLY, ONLY_IMM):
            yield source, destination, payload, len(packet)
        elif operation == FIRST:
            open_messages[lane] = payload, len(packet)
        elif lane in open_messages:
            message, size = open_messages[lane]
            open_messages[lane] = message + payload, size + len(packet)
            if operation in (LAST, LAST_IMM):
                yield source, destination, *open_messages.pop(lane)


def extensions(contents, at, length):
    """The types of the extensions, which fill their part of the contents exactly, and the sizes and entries of the metadata."""
    types, end, metadata = [], at + length, (0, 0)
    while at < end:
        kind, _flags, size = struct.unpack_from("<BBH", contents, at)
        types.append(kind)
        if kind == METADATA:
            metadata = struct.unpack("<II", contents[at + 4:at + 4 + size])
            if not any(metadata):
                raise ValueError("a METADATA of nothing")
        if kind == SHAPES and size % 4:
            raise ValueError("half a fingerprint")
        at += 4 + size
    if at != end or len(types) != len(set(types)):
        raise ValueError("extensions that do not fit")
    found = []
    for size in metadata:
        # Of an announced message some of it may not be in the frame.
        if end + size <= len(contents):
            found += entries(contents[end:end + size])
        end += size
    return types, metadata, found


def entries(part):
    """The entries of metadata, which fill their part exactly."""
    found, at = [], 0
    while at < len(part):
        key_size, size = struct.unpack_from("<BH", part, at)
        key, value = part[at + 3:at + 3 + key_size], part[at + 3 + key_size:at + 3 + key_size + size]
        at += 3 + key_size + size
        if not key or not set(key) <= KEY_BYTES or at > len(part):
            raise ValueError("invalid key of metadata")
        if not key.endswith(b"-bin") and not all(0x20 <= byte <= 0x7e for byte in value):
            raise ValueError("a value of metadata that is not text")
        found.append((key, value))
    return found


def settings(frame):
    """The types of the settings; the required ones are among them."""
    types, at = set(), 8
    while at < len(frame):
        kind, size = struct.unpack_from("<HH", frame, at)
        if kind & 0x7fff in types:
            raise ValueError("a setting that appears twice")
        types.add(kind & 0x7fff)
        at += 4 + size
    if at != len(frame) or not {1, 2, 3} <= types:
        raise ValueError("settings that do not fit")


def handshake(frame):
    """Checks the fields of a fragment of a handshake, and that the fragment fills its frame."""
    if len(frame) < 20 or len(frame) > 2048 or not frame[1] & CRITICAL:
        raise ValueError("a handshake frame of another length, or that may be ignored")
    level, part, offset, total = struct.unpack_from("<BBHH", frame, 12)
    lengths = {(0, 0): (1, 4096), (1, 0): (1, 12288), (0, 1): (4, 4), (1, 1): (4, 4), (1, 2): (32, 32), (0, 3): (0, 0), (0, 4): (0, 0)}
    least, most = lengths.get((level, part), (1, 0))
    length = len(frame) - 20 - 16 * level
    end = offset + length
    if not least <= total <= most or end > total or end < total and len(frame) != 2048 or length < min(total, 1):
        raise ValueError("a fragment that does not fit its flight")


def unbundled(frame):
    """The messages of a bundle without those that were given up, or the frame itself if it is none."""
    if frame[0] != 0x04:
        return [frame]
    items, at = [], 8
    while at < len(frame):
        length = struct.unpack_from("<I", frame, at + 4)[0]
        items.append(frame[at:at + length])
        if length < 8 or at + length > len(frame):
            raise ValueError("a bundle that does not fit")
        at += length
    if len(items) != struct.unpack_from("<H", frame, 2)[0] or not items:
        raise ValueError("a bundle of another number of messages")
    return [item for item in items if item[0] >= 0x10]


def decode(frame):
    """The name of a frame's kind, whether it announces a large message, and the entries of its metadata."""
    kind, flags, word, _grant, _want, _target = struct.unpack_from("<BBHHBB", frame)
    if flags & PHASE or kind < 0x10 and flags & (ANNOUNCES | TIME_LEFT):
        raise ValueError("a reserved flag")
    contents = frame[12 if flags & TIME_LEFT else 8:]
    rest, announces = len(contents), flags & ANNOUNCES != 0
    if announces:
        _number, body, _address, _rkey, _patience = struct.unpack_from("<QQQII", contents)
        contents, rest = contents[32:], rest - 32 + body
    name, found = KINDS.get(kind, "unknown"), []
    if name == "credit" and rest != 0 or name == "fin" and rest != word * 16:
        raise ValueError(f"a {name} of another length")
    if name == "settings":
        settings(frame)
    if name == "handshake":
        handshake(frame)
    if flags & FROM_CALLER and name not in ("data", "reset", "accept", "window", "end"):
        raise ValueError("a flag of streams")
    if name in ("request", "one-way", "open"):
        _call, encoded, extended = struct.unpack_from("<QIH", contents)
        types, metadata, found = extensions(contents, FIXED[name], extended)
        if metadata[1]:
            raise ValueError("a request with metadata for the end")
        extended += sum(metadata)
        if (word == 0xffff) != (1 in types):
            raise ValueError("a request without a method, or with two")
    elif name == "reply":
        _call, encoded, extended = struct.unpack_from("<QIH", contents)
        _types, metadata, found = extensions(contents, FIXED[name], extended)
        extended += sum(metadata)
    elif name == "number":
        encoded, extended = 0, word
        if extensions(contents, FIXED[name], extended)[0] != [2] or rest != FIXED[name] + extended:
            raise ValueError("a number without a number")
    else:
        encoded, extended = 0, 0
    if FIXED.get(name, 0) + encoded + extended > rest:
        raise ValueError(f"a {name} that is too short")
    return name, announces, found


def main(path, address):
    counts = {"sent": {}, "received": {}, "sent_announcements": 0, "received_announcements": 0, "wrong": []}
    counts |= {"request_sizes": [], "reply_sizes": [], "times_left_us": [], "metadata": []}
    with open(path, "rb") as capture:
        data = capture.read()
    own = ipaddress.ip_address(address)
    for source, destination, frame, size in messages(data):
        way = "sent" if source == own else "received" if destination == own else None
        if way is None:
            continue
        try:
            items = unbundled(frame)
            decoded = [(item, *decode(item)) for item in items]
        except (ValueError, struct.error) as error:
            counts["wrong"].append(f"{error}: {frame[:48].hex()}")
            continue
        for item, name, announces, found in decoded:
            counts["metadata"] += [(way, key.decode(), value.decode("latin-1")) for key, value in found]
            counts[way][name] = counts[way].get(name, 0) + 1
            counts[way + "_announcements"] += announces
            # What shares a frame has no size of its own.
            if (way, name) in (("sent", "request"), ("received", "reply")) and item is frame:
                counts[name + "_sizes"].append((len(frame), size))
            if (way, name) == ("sent", "request") and item[1] & TIME_LEFT:
                counts["times_left_us"] += struct.unpack_from("<I", item, 8)
    print(json.dumps(counts))
    return 1 if counts["wrong"] or any("unknown" in counts[way] for way in ("sent", "received")) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
