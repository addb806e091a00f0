#!/usr/bin/env bash
# A capture of the demo, read by our decoder and by tshark. No packet may be malformed, and both must report the same
# opcodes, QPNs, PSNs, XRC SRQ numbers and CM fields.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

for tool in tshark python3; do need tshark "$tool" "$tool" || exit 0; done
if ! build; then
    fail tshark-build "the demo or trunkctl does not build"
    exit 1
fi

small_tree "$scratch/tree"
TRUNKLINE_PCAP="$scratch/%p.pcap" timeout 120 "$programs/trunkline-demo" --tree "$scratch/tree" --calls 500 --json "$scratch/report.json"
verdict tshark-demo $? "the demo failed while it was captured"

captures=("$scratch"/*.pcap)
if ((${#captures[@]} < 2)) || [[ ! -s ${captures[0]} ]]; then
    fail tshark-captures "two processes left ${#captures[@]} captures"
    exit 1
fi
"$programs/trunkctl" pcap check --quiet --at-least 1000 "${captures[@]}" >"$scratch/check.log"
verdict tshark-pcap-check $? "trunkctl pcap check: $(tail -n 1 "$scratch/check.log")"

for at in "${!captures[@]}"; do
    capture=${captures[at]}
    "$programs/trunkctl" pcap check --json "$capture" >"$capture.json"
    why=$(python3 deploy/checks/tshark_compare.py "$capture" "$capture.json" 2>&1)
    verdict "tshark-compare-$at" $? "$why"
done
exit "$check_status"
