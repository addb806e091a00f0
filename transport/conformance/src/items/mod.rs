//! The items of the contract, by section.

mod cm;
mod domain;
mod errors;
mod events;
mod initiator;
mod legacy;
mod modify;
mod ranges;
mod rc;
mod rc_ends;
mod srq;
mod target;
mod tgt;

use crate::Item;

macro_rules! item {
    ($id:literal, $check:path, $title:literal) => {
        Item { id: $id, title: $title, check: $check }
    };
}

/// All items, in the order of the contract.
pub const ITEMS: &[Item] = &[
    item!("A1", domain::a1, "a domain is a file's inode, whatever link or descriptor names it"),
    item!("A2", domain::a2, "one device has one domain for an inode, two devices have two"),
    item!("A3", domain::a3, "a domain pins its inode; a new file at the path is a new domain"),
    item!("A4", domain::a4, "of several simultaneous exclusive opens exactly one succeeds"),
    item!("A5", domain::a5, "the outcome of an open follows the table of flags"),
    item!("A6", domain::a6, "without a file each open creates a private domain"),
    item!("A7", domain::a7, "flags other than CREATE and EXCLUSIVE are ignored"),
    item!("A9", domain::a9, "a device without XRC refuses domains, INIs and TGTs with EOPNOTSUPP"),
    item!("A10", domain::a10, "each open returns its own handle; handles of one inode share one domain"),
    item!("A11", domain::a11, "objects pin the handle they were made with, and no other"),
    item!("A12", domain::a12, "the last reference destroys the domain"),
    item!("A13", domain::a13, "a closed handle is no longer valid"),
    item!("A16", domain::a16, "the file may be closed once the domain is open"),
    item!(
        "B2",
        legacy::b2,
        "older calls: domains as in section A, busy while this process has objects in them"
    ),
    item!("B3", legacy::b3, "older calls: the creator of a receive QP is registered with it"),
    item!("B4", legacy::b4, "older calls: only a receive QP of the domain can be registered with"),
    item!("B5", legacy::b5, "older calls: the last one that unregisters destroys the receive QP"),
    item!("B6", legacy::b6, "older calls: two steps bring a receive QP to RTR, and messages arrive"),
    item!("B8", legacy::b8, "older and present calls work on the same objects"),
    item!(
        "B9",
        legacy::b9,
        "older calls: only a registered process can change the QP, and none can register twice"
    ),
    item!("B10", legacy::b10, "older calls: of two that connect one receive QP, one gets EINVAL"),
    item!("C1", tgt::c1, "a TGT needs a domain and nothing else"),
    item!("C2", tgt::c2, "sizes of queues that a QP does not have are ignored"),
    item!("C3", tgt::c3, "a TGT belongs to its domain; its creator's handle is one like any other"),
    item!("C4", tgt::c4, "a TGT opens by number in its own domain only"),
    item!("C5", tgt::c5, "an opened handle refers to the same QP and works until it is destroyed itself"),
    item!("C6", tgt::c6, "a TGT lives until its last handle is destroyed"),
    item!("C8", tgt::c8, "all handles of a TGT see and change one state"),
    item!("C9", tgt::c9, "a TGT and the SRQs of its domain do not pin each other"),
    item!("C10", tgt::c10, "a TGT has no send queue, and neither XRC type a receive queue"),
    item!("C11", tgt::c11, "an INI takes a PD and a send CQ, no SRQ and no domain"),
    item!("C12", tgt::c12, "an RC QP takes no XRC SRQ"),
    item!("D1", srq::d1, "an XRC SRQ takes PD, domain and CQ of its own device"),
    item!("D2", srq::d2, "an SRQ pins its PD, domain handle and CQ"),
    item!("D3", srq::d3, "objects of another open device are not taken"),
    item!("D4", srq::d4, "XRC SRQs have distinct 24-bit numbers"),
    item!("D5", srq::d5, "an SRQ is at least as large as requested, and not larger than allowed"),
    item!("D6", srq::d6, "the limit fires once, when fewer receives than the limit are posted"),
    item!("D7", srq::d7, "an SRQ can be resized, but not below its limit or the number of posted receives"),
    item!("D8", srq::d8, "a basic SRQ in use is busy, an XRC SRQ never is"),
    item!("D9", srq::d9, "receives of a destroyed SRQ vanish without completions"),
    item!("D10", srq::d10, "a basic SRQ has no number"),
    item!("E1", modify::e1, "each transition takes its attributes, none fewer and none more"),
    item!("E2", modify::e2, "ERR and RESET are reached with the state alone, and no state is skipped"),
    item!("E3", modify::e3, "attributes that the QP type does not use are dropped, so RC masks work"),
    item!("E4", modify::e4, "port and P_Key index are checked"),
    item!("E5", modify::e5, "the TGT's access flags decide on WRITE, READ and atomics, not the INI's"),
    item!(
        "E6",
        modify::e6,
        "INI and TGT name each other; PSNs of the direction without requests are not used"
    ),
    item!("E7", modify::e7, "a TGT receives from RTR on"),
    item!("E8", modify::e8, "an INI accepts work from RTS on, holds it in SQD and flushes it in ERR"),
    item!("F1", initiator::f1, "every operation names an SRQ, one-sided ones too"),
    item!(
        "F2",
        initiator::f2,
        "an INI supports SEND, WRITE, READ and atomics, with immediate data where defined"
    ),
    item!("F3", initiator::f3, "sends complete at the INI as on an RC QP"),
    item!("F4", initiator::f4, "one INI reaches every SRQ of the domain, strictly in order"),
    item!("F5", initiator::f5, "no more READs and atomics are outstanding than both ends allow"),
    item!("G1", target::g1, "receives complete into the CQ of the SRQ they name"),
    item!("G2", target::g2, "a receive completion has the number of the TGT"),
    item!("G3", target::g3, "receive completions have immediate data and length as on RC"),
    item!("G4", target::g4, "the SRQ's PD decides which rkeys a message may use"),
    item!("G5", target::g5, "the SRQ's PD decides which lkeys its receives may use"),
    item!("G7", target::g7, "an SRQ that the domain does not have ends the connection"),
    item!("G8", target::g8, "destroying an SRQ may end a TGT, but never affects other SRQs"),
    item!("G9", target::g9, "an empty SRQ holds the sender back, or ends it after its retries"),
    item!("G10", target::g10, "a message that is too long for its receive ends both in an error"),
    item!("H1", events::h1, "an error of a TGT is reported to its handles"),
    item!("H2", events::h2, "an error of a TGT is reported after the creator's handle was destroyed"),
    item!("H3", events::h3, "the first packet at a TGT in RTR is an event"),
    item!("H4", events::h4, "a QP with an SRQ reports that it has taken its last receive"),
    item!("H5", events::h5, "the overflow of a CQ is reported once, and its QPs and SRQs stop"),
    item!("I1", errors::i1, "an INI in ERR flushes its outstanding requests, and nothing else is affected"),
    item!("I2", errors::i2, "a TGT in ERR leaves the receives to others, and its peer runs out of retries"),
    item!("I3", errors::i3, "objects in use are busy, and the customary order destroys them all"),
    item!("J1", cm::j1, "XRC needs the IB port space"),
    item!("J5", cm::j5, "the SRQ number travels as private data"),
    item!("J6", cm::j6, "a connection carries one direction; the other needs a second"),
    item!("J7", cm::j7, "a listener for another type refuses XRC"),
    item!("J8", cm::j8, "INI and TGT learn each other's numbers"),
    item!("J9", cm::j9, "the INI's disconnect reaches the target"),
    item!("J10", cm::j10, "the reply decides the INI's RNR retries and READ depth"),
    item!("J11", cm::j11, "a second request of a connected INI is stale, and ends the first connection"),
    item!("J12", cm::j12, "the CM sets an RNR timer of 655 ms, which can be changed afterwards"),
    item!("K1", cm::k1, "the device announces XRC"),
    item!("M9", cm::m9, "retries above seven are cut to seven"),
    item!("R1", rc::r1, "RC with its own receive queues supports all operations both ways"),
    item!("R2", rc::r2, "RC QPs share a basic SRQ"),
    item!("R3", rc_ends::r3, "the limit of a basic SRQ fires once"),
    item!("R4", rc_ends::r4, "an empty SRQ ends a send after its RNR retries"),
    item!("R5", rc_ends::r5, "a message that is too long for its receive ends both QPs"),
    item!("R6", rc_ends::r6, "keys and rights are checked before memory is touched"),
    item!("R7", rc_ends::r7, "a silent peer ends a send after its retries"),
    item!("R8", rc_ends::r8, "the CM connects RC in both port spaces, and ends it"),
    item!("R9", rc_ends::r9, "a refusal reaches the initiator with its private data"),
    item!("R10", rc_ends::r10, "objects in use are busy"),
    item!("R11", ranges::r11, "a region of a part of memory reaches that part and nothing beside it"),
];
