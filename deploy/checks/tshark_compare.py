#!/usr/bin/env python3
"""Compares tshark's decoding of a capture with the output of `trunkctl pcap check --json`.

usage: tshark_compare.py CAPTURE OUR_JSON
Exit status 1 and one line per difference (at most 20) when they do not agree or tshark calls a packet malformed.
"""

import json
import subprocess
import sys

CM_REQ, CM_REP = 0x10, 0x13
FIELDS = {
    "frame": "frame.number",
    "protocols": "frame.protocols",
    "malformed": "_ws.malformed",
    "opcode": "infiniband.bth.opcode",
    "dest_qp": "infiniband.bth.destqp",
    "psn": "infiniband.bth.psn",
    "attribute": "infiniband.mad.attributeid",
    "service_type": "infiniband.cm.req.transpsvctype",
    "extended": "infiniband.cm.req.ext_transport",
    "local_eecn": "infiniband.cm.rep.localeecn",
    "payload": "udp.payload",
}


def tshark(capture, *arguments):
    # infiniband_sdp mistakes CM messages of other services for its own and then reports them as malformed.
    command = ["tshark", "-n", "-r", capture, "--disable-protocol", "infiniband_sdp", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def packets_of_tshark(capture):
    # Packets between our devices may use ports other than 4791, which tshark decodes as RoCE only with an option.
    lines = tshark(capture, "-T", "fields", "-e", "udp.srcport", "-e", "udp.dstport")
    ports = sorted({port for line in lines for port in line.split() if port != "4791"})
    decode = [word for port in ports for word in ("-d", f"udp.port=={port},infiniband")]
    wanted = [word for field in FIELDS.values() for word in ("-e", field)]
    for line in tshark(capture, *decode, "-T", "fields", "-E", "separator=|", "-E", "occurrence=f", *wanted):
        yield dict(zip(FIELDS, line.split("|")))


def number(text):
    return int(text, 0) if text else None


def xrc_srq(payload, opcode):
    """The XRCETH by its place: after the 12 bytes of the BTH of every XRC request; tshark has no field for it."""
    operation = opcode & 0x1F
    if opcode >> 5 != 5 or 13 <= operation <= 18:
        return None
    return int(payload[2 * 12 : 2 * 16], 16) & 0xFFFFFF


def as_we_should_have_it(packet):
    opcode = number(packet["opcode"])
    seen = {
        "opcode": opcode,
        "dest_qp": number(packet["dest_qp"]),
        "psn": number(packet["psn"]),
        "xrc_srq": xrc_srq(packet["payload"].replace(":", ""), opcode),
    }
    attribute = number(packet["attribute"])
    if attribute == CM_REQ:
        seen["transport_service_type"] = number(packet["service_type"])
        seen["extended_transport"] = number(packet["extended"])
    if attribute == CM_REP:
        seen["local_eecn"] = number(packet["local_eecn"])
    return seen


def differences(capture, ours):
    counts = {"packets": 0, "xrc": 0, "req": 0, "rep": 0}
    for packet in packets_of_tshark(capture):
        frame = int(packet["frame"])
        if packet["malformed"]:
            yield f"frame {frame}: {packet['malformed']}"
        if not packet["opcode"]:
            yield f"frame {frame}: tshark does not take it for RoCE ({packet['protocols']})"
            continue
        seen, mine = as_we_should_have_it(packet), ours.pop(frame, None)
        if mine is None:
            yield f"frame {frame}: not in our log"
            continue
        for key, value in seen.items():
            if mine.get(key) != value:
                yield f"frame {frame}: {key} is {value} for tshark, {mine.get(key)} for us"
        if seen.get("transport_service_type", 3) != 3 or seen.get("extended_transport", 1) != 1:
            yield f"frame {frame}: a REQ that does not ask for XRC"
        counts["packets"] += 1
        counts["xrc"] += seen["xrc_srq"] is not None
        counts["req"] += "extended_transport" in seen
        counts["rep"] += "local_eecn" in seen
    yield from (f"frame {frame}: in our log, unseen by tshark" for frame in sorted(ours))
    yield from (f"the capture holds no {kind}" for kind, count in counts.items() if count == 0)
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))


def our_log(path):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.strip()]
    return {line["frame"]: line for line in lines if line["kind"] == "packet"}


def main():
    _, capture, log = sys.argv
    found = list(differences(capture, our_log(log)))
    print(*found[:20], sep="\n", end="\n" if found else "")
    if len(found) > 20:
        print(f"and {len(found) - 20} more")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
