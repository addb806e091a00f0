//! The fields of REQ and REP (contract rocev2 9.5), and the effects of their values.

use crate::wire::MAD_DATA_BYTES;
use trunkline_verbs::RejectReason;

/// The effect of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Taken,
    /// Refused with a REJ. This counter and `cm_refused` increase.
    Refused(&'static str, RejectReason),
    /// Dropped silently. This counter increases.
    Dropped(&'static str),
}

use Verdict::{Dropped, Refused, Taken};

/// A field, with its position and the effect of a value. The second argument is the valid value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    bit: usize,
    bits: usize,
    pub(super) verdict: fn(u64, u64) -> Verdict,
}

const fn field(
    name: &'static str,
    byte: usize,
    skip: usize,
    bits: usize,
    verdict: fn(u64, u64) -> Verdict,
) -> Field {
    Field { name, bit: byte * 8 + skip, bits, verdict }
}

const NO_QP: Verdict = Refused("cm_refused_no_qp", RejectReason::NO_QP);
const SERVICE: Verdict = Refused("cm_refused_service_id", RejectReason::INVALID_SERVICE_ID);
const TRANSPORT: Verdict = Refused("cm_refused_transport", RejectReason::INVALID_TRANSPORT_TYPE);
const CONSUMER: Verdict = Refused("cm_refused_consumer", RejectReason::CONSUMER);
const OTHER_KIND: Verdict = Refused("cm_refused_other_kind", RejectReason::CONSUMER);
const MTU: Verdict = Refused("cm_refused_mtu", RejectReason::INVALID_PATH_MTU);
const PKEY: Verdict = Refused("cm_refused_pkey", RejectReason::UNSUPPORTED);
const GID: Verdict = Refused("cm_refused_gid", RejectReason::INVALID_PRIMARY_GID);

const fn any(_: u64, _: u64) -> Verdict {
    Taken
}

const fn only_right(value: u64, right: u64, otherwise: Verdict) -> Verdict {
    if value == right { Taken } else { otherwise }
}

/// Offset of the primary path. The alternate path follows it.
const PRIMARY: usize = 52;
const ALTERNATE: usize = 96;
const PRIVATE: usize = 140;

/// Fields that cover all 232 bytes of a REQ to an XRC listener.
pub(super) const REQ: &[Field] = &[
    field("local id", 0, 0, 32, |value, _| if value == 0 { Dropped("cm_malformed") } else { Taken }),
    field("reserved", 4, 0, 8, any),
    field("vendor id", 5, 0, 24, any),
    field("service id", 8, 0, 64, |value, right| only_right(value, right, SERVICE)),
    field("CA GUID", 16, 0, 64, any),
    field("reserved", 24, 0, 32, any),
    field("Q_Key", 28, 0, 32, any),
    field("QPN", 32, 0, 24, |value, _| if value < 2 { NO_QP } else { Taken }),
    field("responder resources", 35, 0, 8, any),
    field("EECN", 36, 0, 24, any),
    field("initiator depth", 39, 0, 8, any),
    field("remote EECN", 40, 0, 24, any),
    field("remote response timeout", 43, 0, 5, any),
    field("transport service", 43, 5, 2, |value, _| match value {
        3 => Taken,
        0 => OTHER_KIND, // RC, which this listener refuses (contract J7)
        _ => TRANSPORT,
    }),
    field("flow control", 43, 7, 1, any),
    field("starting PSN", 44, 0, 24, any),
    field("local response timeout", 47, 0, 5, any),
    field("retry count", 47, 5, 3, any),
    field("P_Key", 48, 0, 16, |value, _| if value & 0x7fff == 0x7fff { Taken } else { PKEY }),
    field("path MTU", 50, 0, 4, |value, _| if (1..=5).contains(&value) { Taken } else { MTU }),
    field("RDC exists", 50, 4, 1, any),
    field("RNR retry", 50, 5, 3, any),
    field("max CM retries", 51, 0, 4, any),
    field("SRQ", 51, 4, 1, any),
    field("extended transport", 51, 5, 3, |value, _| if value == 1 { Taken } else { TRANSPORT }),
    field("local LID", PRIMARY, 0, 16, any),
    field("remote LID", PRIMARY + 2, 0, 16, any),
    field("local GID, high", PRIMARY + 4, 0, 64, |value, right| only_right(value, right, GID)),
    field("local GID, low", PRIMARY + 12, 0, 64, |value, right| only_right(value, right, GID)),
    field("remote GID, high", PRIMARY + 20, 0, 64, |value, right| only_right(value, right, GID)),
    field("remote GID, low", PRIMARY + 28, 0, 64, |value, right| only_right(value, right, GID)),
    field("flow label", PRIMARY + 36, 0, 20, any),
    field("reserved", PRIMARY + 38, 4, 6, any),
    field("packet rate", PRIMARY + 39, 2, 6, any),
    field("traffic class", PRIMARY + 40, 0, 8, any),
    field("hop limit", PRIMARY + 41, 0, 8, any),
    field("SL", PRIMARY + 42, 0, 4, any),
    field("subnet local", PRIMARY + 42, 4, 1, any),
    field("reserved", PRIMARY + 42, 5, 3, any),
    field("local ACK timeout", PRIMARY + 43, 0, 5, any),
    field("reserved", PRIMARY + 43, 5, 3, any),
    // The alternate path is ignored, whatever its content.
    field("alternate LIDs", ALTERNATE, 0, 32, any),
    field("alternate local GID, high", ALTERNATE + 4, 0, 64, any),
    field("alternate local GID, low", ALTERNATE + 12, 0, 64, any),
    field("alternate remote GID, high", ALTERNATE + 20, 0, 64, any),
    field("alternate remote GID, low", ALTERNATE + 28, 0, 64, any),
    field("alternate flow label to ACK timeout", ALTERNATE + 36, 0, 64, any),
    // rdma_cm's header (contract rocev2 11.2).
    field("CMA version", PRIVATE, 0, 8, |value, _| only_right(value, 0, CONSUMER)),
    field("IP version", PRIVATE + 1, 0, 4, |value, _| match value {
        4 => Taken,
        6 => SERVICE, // the addresses are then different ones
        _ => CONSUMER,
    }),
    field("reserved", PRIVATE + 1, 4, 4, any),
    field("source port", PRIVATE + 2, 0, 16, any),
    field("source address, before IPv4", PRIVATE + 8, 0, 64, any),
    field("source address", PRIVATE + 16, 0, 32, |value, right| only_right(value, right, SERVICE)),
    field("destination address, before IPv4", PRIVATE + 24, 0, 64, any),
    field("destination address", PRIVATE + 32, 0, 32, |value, right| only_right(value, right, SERVICE)),
    field("first private data", PRIVATE + 36, 0, 64, any),
    field("last private data", 224, 0, 64, any),
];

/// Fields that cover all 232 bytes of a REP to an INI.
pub(super) const REP: &[Field] = &[
    field("local id", 0, 0, 32, |value, _| if value == 0 { Dropped("cm_malformed") } else { Taken }),
    field("remote id", 4, 0, 32, |value, right| only_right(value, right, Dropped("cm_unknown_connection"))),
    field("Q_Key", 8, 0, 32, any),
    field("QPN", 12, 0, 24, any),
    field("vendor", 15, 0, 8, any),
    // Number of the TGT (contract rocev2 10.3).
    field("EECN", 16, 0, 24, |value, _| if value < 2 { Dropped("cm_malformed") } else { Taken }),
    field("vendor", 19, 0, 8, any),
    field("starting PSN", 20, 0, 24, any),
    field("vendor", 23, 0, 8, any),
    field("responder resources", 24, 0, 8, any),
    field("initiator depth", 25, 0, 8, any),
    field("target ACK delay", 26, 0, 5, any),
    field("failover", 26, 5, 2, any),
    field("flow control", 26, 7, 1, any),
    field("RNR retry", 27, 0, 3, any),
    field("SRQ", 27, 3, 1, any),
    field("reserved", 27, 4, 4, any),
    field("CA GUID", 28, 0, 64, any),
    field("first private data", 36, 0, 64, any),
    field("last private data", 224, 0, 64, any),
];

/// Returns boundary values, single bits at both ends, and random values.
pub(super) fn values(field: &Field) -> Vec<u64> {
    let max = u64::MAX >> (64 - field.bits);
    let mut values = vec![0, 1, 2, max / 2, max / 2 + 1, max.wrapping_sub(1), max];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ (field.bit as u64) << 20;
    for _ in 0..16 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        values.push(random);
    }
    for value in &mut values {
        *value &= max;
    }
    values.sort_unstable();
    values.dedup();
    values
}

pub(super) fn at(field: &Field, data: &[u8; MAD_DATA_BYTES]) -> u64 {
    let bit = |at: usize| u64::from(data[at / 8] >> (7 - at % 8) & 1);
    (field.bit..field.bit + field.bits).fold(0, |value, at| value << 1 | bit(at))
}

pub(super) fn put(field: &Field, data: &mut [u8; MAD_DATA_BYTES], value: u64) {
    for (index, at) in (field.bit..field.bit + field.bits).rev().enumerate() {
        let mask = 1 << (7 - at % 8);
        data[at / 8] = data[at / 8] & !mask | if value >> index & 1 == 1 { mask } else { 0 };
    }
}
