//! Attributes of a TGT as plain numbers, for its published state.
//!
//! Decoding only checks that the values are valid for their types.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use trunkline_verbs::{Access, AddressVector, Gid, Mtu, Psn, QpAttributes, QpNumber, QpState, QpType};

/// Number of words for the attributes in the published state.
pub(super) const ATTRIBUTE_WORDS: usize = 22;

/// Appends the attributes as [`ATTRIBUTE_WORDS`] words.
pub(super) fn put_attributes(out: &mut Vec<u64>, attributes: &QpAttributes, source: Option<IpAddr>) {
    let halves = |gid: Gid| {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| gid.0[at + index]));
        [half(0), half(8)]
    };
    let vector = attributes.address_vector;
    out.extend([
        u64::from(attributes.state.code()),
        u64::from(attributes.pkey_index),
        u64::from(attributes.port),
        u64::from(attributes.access.bits()),
        u64::from(attributes.path_mtu.code()),
        u64::from(attributes.destination_qp.get()),
        u64::from(attributes.rq_psn.get()),
        u64::from(attributes.sq_psn.get()),
    ]);
    out.extend(
        [
            attributes.max_dest_rd_atomic,
            attributes.max_rd_atomic,
            attributes.min_rnr_timer,
            attributes.timeout,
            attributes.retry_count,
            attributes.rnr_retry,
        ]
        .map(u64::from),
    );
    out.push(u64::from(source.is_some() && vector.is_some()));
    out.extend(source.map_or([0, 0], |source| halves(Gid::from(source))));
    out.extend(vector.map_or([0, 0], |vector| halves(vector.destination)));
    out.extend(vector.map_or([0; 3], |vector| {
        let small = [vector.port, vector.hop_limit, vector.traffic_class].map(u64::from);
        [small[0] | small[1] << 8 | small[2] << 16, u64::from(vector.flow_label), 0]
    }));
}

/// Decodes the attributes, and the local address of their address vector. Returns `None` if they are invalid.
pub(super) fn take_attributes(words: &[u64]) -> Option<(QpAttributes, Option<IpAddr>)> {
    let words: &[u64; ATTRIBUTE_WORDS] = words.get(..ATTRIBUTE_WORDS)?.try_into().ok()?;
    let byte = |index: usize| u8::try_from(words[index]).ok();
    let number = |index: usize| u32::try_from(words[index]).ok();
    let gid =
        |index: usize| Gid((u128::from(words[index]) | u128::from(words[index + 1]) << 64).to_le_bytes());
    let has_vector = words[14] != 0;
    let [port, hop_limit, traffic_class, ..] = words[19].to_le_bytes();
    let flow_label = number(20)?;
    let vector = AddressVector {
        source_gid_index: 0,
        destination: gid(17),
        port,
        flow_label,
        hop_limit,
        traffic_class,
    };
    let attributes = QpAttributes {
        qp_type: QpType::XrcTgt,
        state: QpState::from_code(number(0)?)?,
        pkey_index: u16::try_from(words[1]).ok()?,
        port: byte(2)?,
        access: Access::from_bits(number(3)?)?,
        path_mtu: Mtu::from_code(byte(4)?)?,
        destination_qp: QpNumber::new(number(5)?),
        rq_psn: Psn::new(number(6)?),
        sq_psn: Psn::new(number(7)?),
        max_dest_rd_atomic: byte(8)?,
        max_rd_atomic: byte(9)?,
        min_rnr_timer: byte(10)?,
        timeout: byte(11)?,
        retry_count: byte(12)?,
        rnr_retry: byte(13)?,
        address_vector: has_vector.then_some(vector),
    };
    Some((attributes, has_vector.then(|| gid(15).ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> QpAttributes {
        QpAttributes {
            state: QpState::ReadyToReceive,
            port: 1,
            access: Access::REMOTE_ATOMIC,
            address_vector: Some(AddressVector {
                source_gid_index: 0,
                destination: Gid::from(IpAddr::from([10, 0, 0, 7])),
                port: 1,
                flow_label: 0x12345,
                hop_limit: 64,
                traffic_class: 9,
            }),
            path_mtu: Mtu::Mtu4096,
            destination_qp: QpNumber::new(0x123456),
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(2),
            max_dest_rd_atomic: 3,
            max_rd_atomic: 4,
            min_rnr_timer: 5,
            timeout: 6,
            retry_count: 7,
            rnr_retry: 1,
            ..QpAttributes::new(QpType::XrcTgt)
        }
    }

    #[test]
    fn attributes_round_trip() {
        let source = IpAddr::from([127, 4, 5, 6]);
        for (attributes, source) in [(connected(), Some(source)), (QpAttributes::new(QpType::XrcTgt), None)] {
            let mut words = Vec::new();
            put_attributes(&mut words, &attributes, source);
            assert_eq!(words.len(), ATTRIBUTE_WORDS);
            assert_eq!(take_attributes(&words), Some((attributes, source)));
        }
    }

    #[test]
    fn invalid_attribute_words_are_refused() {
        let mut words = Vec::new();
        put_attributes(&mut words, &connected(), None);
        assert_eq!(take_attributes(&words[1..]), None, "too few");
        for index in [0, 1, 2, 3, 4, 5, 8, 13] {
            let mut wrong = words.clone();
            wrong[index] = u64::MAX;
            assert_eq!(take_attributes(&wrong), None, "word {index}");
        }
    }
}
