"""Migrates a guest from one QEMU to another over RDMA and compares the two memories.

migration.py guest: the guest as a multiboot kernel, on stdout. It fills memory with words that say where they stand, and
then counts in a few pages indefinitely, so that pages change while they are sent.
migration.py migrate SOCKET HOST PORT on|off QEMU...: starts the source, whose guest moves to the QEMU that has its monitor
at SOCKET and waits with -S and -incoming defer. Ends with status 0 when the migration was completed, no byte differs and
the guest continues at its destination. The fourth argument selects whether all memory is pinned.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import time

LOADED = 0x100000
COUNTED, COUNTED_END = 0x180000, 0x1C0000  # one word of each page
PATTERN, PATTERN_END = 0x200000, 0x2200000
MEMORY_END = 0x4000000  # 64 MiB
FACTOR = 0x9E3779B1
PAGE = 4096
PATIENCE_S = 50


def guest():
    header_words = 8
    entry = LOADED + 4 * header_words
    code = b""
    code += b"\xbf" + struct.pack("<I", PATTERN)  # mov edi, PATTERN
    fill = len(code)
    code += b"\x69\xc7" + struct.pack("<I", FACTOR)  # imul eax, edi, FACTOR
    code += b"\x89\x07\x83\xc7\x04"  # mov [edi], eax; add edi, 4
    code += b"\x81\xff" + struct.pack("<I", PATTERN_END)  # cmp edi, PATTERN_END
    code += b"\x72" + struct.pack("b", fill - len(code) - 2)  # jb fill
    again = len(code)
    code += b"\xbf" + struct.pack("<I", COUNTED)  # mov edi, COUNTED
    count = len(code)
    # QEMU before 9.0 (TCG) checks whether a page is clean when its TLB entry is created, and not again after it was sent.
    code += b"\x0f\x01\x3f"  # invlpg [edi]
    code += b"\xff\x07"  # inc dword [edi]
    code += b"\x81\xc7" + struct.pack("<I", PAGE)  # add edi, PAGE
    code += b"\x81\xff" + struct.pack("<I", COUNTED_END)  # cmp edi, COUNTED_END
    code += b"\x72" + struct.pack("b", count - len(code) - 2)  # jb count
    code += b"\xf3\x90"  # pause
    code += b"\xeb" + struct.pack("b", again - len(code) - 2)  # jmp again
    magic, flags = 0x1BADB002, 0x10000  # the header contains the load address
    end = entry + len(code)
    return struct.pack("<8I", magic, flags, -(magic + flags) & 0xFFFFFFFF, LOADED, LOADED, end, end, entry) + code


def until(what, condition):
    """Waits until the probe returns a value, and returns it."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    sys.exit(f"not within {PATIENCE_S} s: {what}")


class Monitor:
    """The machine protocol of one QEMU."""

    def __init__(self, name, path):
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        until(f"{name} has a monitor", lambda: self.socket.connect_ex(path) == 0)
        self.lines = self.socket.makefile("r")
        self.lines.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        for line in self.lines:
            answer = json.loads(line)
            if "error" in answer:
                sys.exit(f"{self.name} refused {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        sys.exit(f"{self.name} ended at {command}")

    def counter(self):
        said = self.ask("human-monitor-command", **{"command-line": f"xp /1xw {COUNTED:#x}"})
        return int(said.split(":")[1], 16)

    def memory(self, path):
        self.ask("pmemsave", val=LOADED, size=MEMORY_END - LOADED, filename=path)
        with open(path, "rb") as file:
            memory = file.read()
        os.unlink(path)
        return memory

    def pin(self, pinned):
        self.ask("migrate-set-capabilities", capabilities=[{"capability": "rdma-pin-all", "state": pinned}])


def outcome(source):
    """The status of the finished migration; None while it runs."""
    result = source.ask("query-migrate")
    if result.get("status") in ("completed", "failed", "cancelled"):
        return result
    return None


def check(memory, whose):
    """Checks that it contains the bytes that the guest wrote."""
    for address in range(PATTERN, PATTERN_END, 1024):
        (word,) = struct.unpack_from("<I", memory, address - LOADED)
        if word != address * FACTOR & 0xFFFFFFFF:
            sys.exit(f"{whose} holds {word:#x} at {address:#x}")


def migrate(path, host, port, pinned, command):
    own = path + ".source"
    # The source ends with this process, however that ends.
    source_process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command, "-qmp", f"unix:{own},server=on,wait=off"])
    destination = Monitor("destination", path)
    source = Monitor("source", own)
    destination.pin(pinned)
    source.pin(pinned)
    destination.ask("migrate-incoming", uri=f"rdma:{host}:{port}")
    until("the guest has filled its memory", source.counter)

    source.ask("migrate", uri=f"rdma:{host}:{port}")
    result = until("the migration ends", lambda: outcome(source))
    if result["status"] != "completed":
        sys.exit(f"the source reports {result}")
    until("the destination has taken over", lambda: destination.ask("query-status")["status"] == "paused")

    before, after = source.memory(path + ".before"), destination.memory(path + ".after")
    if len(before) != MEMORY_END - LOADED or before != after:
        differing = [at for at, (one, other) in enumerate(zip(before, after)) if one != other]
        words = (at // 4 * 4 for at in differing[:5])
        result = (f"{LOADED + at:#x}: {before[at:at + 4].hex()}, {after[at:at + 4].hex()}" for at in words)
        sys.exit(f"{len(differing)} bytes differ of {len(before)} and {len(after)}; before and after: {'; '.join(result)}")
    check(after, "the destination")

    counted = destination.counter()
    destination.ask("cont")
    until("the guest continues", lambda: destination.counter() != counted)
    status = destination.ask("query-status")["status"]
    if status != "running":
        sys.exit(f"the destination is {status}")
    source.ask("quit")
    destination.ask("quit")
    if source_process.wait(PATIENCE_S) != 0:
        sys.exit(f"the source ended with status {source_process.returncode}")
    print(f"completed, running, 0 of {len(before)} bytes differ, {result['ram']['transferred']} bytes sent")


if sys.argv[1] == "guest":
    sys.stdout.buffer.write(guest())
else:
    migrate(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5] == "on", sys.argv[6:])
