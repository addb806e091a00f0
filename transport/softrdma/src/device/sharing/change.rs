//! Changes and attributes of a TGT as plain numbers.
//!
//! Owns their encoding in messages and in the shared image. Decoded values are checked only against their
//! types. The code that applies a change decides whether it is legal.
#![forbid(unsafe_code)]

use super::message::{Reader, put32, put64};
use std::net::IpAddr;
use trunkline_verbs::{
    Access, AddressVector, Gid, Mtu, Psn, QpAttributes, QpModify, QpNumber, QpState, QpType,
};

/// Number of words of the attributes in an image.
pub(super) const ATTRIBUTE_WORDS: usize = 22;

fn state_code(state: QpState) -> u32 {
    state.code().into()
}

fn state_of(code: u64) -> Option<QpState> {
    QpState::from_code(u32::try_from(code).ok()?)
}

/// Appends a change. The message carries the source of the address vector separately.
pub(super) fn put_change(out: &mut Vec<u8>, change: &QpModify) {
    let fields = [
        change.state.map(state_code),
        change.current_state.map(state_code),
        change.pkey_index.map(u32::from),
        change.port.map(u32::from),
        change.access.map(|access| access.bits()),
        change.path_mtu.map(|mtu| u32::from(mtu.code())),
        change.destination_qp.map(QpNumber::get),
        change.rq_psn.map(Psn::get),
        change.sq_psn.map(Psn::get),
        change.max_dest_rd_atomic.map(u32::from),
        change.max_rd_atomic.map(u32::from),
        change.min_rnr_timer.map(u32::from),
        change.timeout.map(u32::from),
        change.retry_count.map(u32::from),
        change.rnr_retry.map(u32::from),
    ];
    for field in fields {
        out.push(u8::from(field.is_some()));
        put32(out, field.unwrap_or(0));
    }
    out.push(u8::from(change.address_vector.is_some()));
    if let Some(vector) = change.address_vector {
        out.extend_from_slice(&vector.destination.0);
        out.extend_from_slice(&[vector.port, vector.hop_limit, vector.traffic_class]);
        put64(out, u64::from(vector.flow_label));
    }
}

/// Reads a change.
pub(super) fn take_change(from: &mut Reader<'_>) -> Option<QpModify> {
    fn byte(value: u32) -> Option<u8> {
        u8::try_from(value).ok()
    }
    /// Reads an optional field; `None` if it holds no value of the type.
    fn field<T>(from: &mut Reader<'_>, read: impl FnOnce(u32) -> Option<T>) -> Option<Option<T>> {
        let (is_some, value) = (from.u8()?, from.u32()?);
        if is_some == 0 { Some(None) } else { read(value).map(Some) }
    }
    let state = |value: u32| state_of(u64::from(value));
    let mut change = QpModify {
        state: field(from, state)?,
        current_state: field(from, state)?,
        pkey_index: field(from, |value| u16::try_from(value).ok())?,
        port: field(from, byte)?,
        access: field(from, Access::from_bits)?,
        path_mtu: field(from, |value| byte(value).and_then(Mtu::from_code))?,
        destination_qp: field(from, |value| Some(QpNumber::new(value)))?,
        rq_psn: field(from, |value| Some(Psn::new(value)))?,
        sq_psn: field(from, |value| Some(Psn::new(value)))?,
        max_dest_rd_atomic: field(from, byte)?,
        max_rd_atomic: field(from, byte)?,
        min_rnr_timer: field(from, byte)?,
        timeout: field(from, byte)?,
        retry_count: field(from, byte)?,
        rnr_retry: field(from, byte)?,
        address_vector: None,
    };
    if from.u8()? != 0 {
        change.address_vector = Some(AddressVector {
            source_gid_index: 0,
            destination: Gid(from.array()?),
            port: from.u8()?,
            hop_limit: from.u8()?,
            traffic_class: from.u8()?,
            flow_label: u32::try_from(from.u64()?).ok()?,
        });
    }
    Some(change)
}

/// Appends [`ATTRIBUTE_WORDS`] words.
pub(super) fn put_attributes(out: &mut Vec<u64>, attributes: &QpAttributes, source: Option<IpAddr>) {
    let halves = |gid: Gid| {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| gid.0[at + index]));
        [half(0), half(8)]
    };
    let vector = attributes.address_vector;
    out.extend([
        u64::from(state_code(attributes.state)),
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

/// Decodes the attributes in an image, and the local address of their address vector.
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
        state: state_of(words[0])?,
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
    fn attributes_come_back_as_they_were() {
        let source = IpAddr::from([127, 4, 5, 6]);
        for (attributes, source) in [(connected(), Some(source)), (QpAttributes::new(QpType::XrcTgt), None)] {
            let mut words = Vec::new();
            put_attributes(&mut words, &attributes, source);
            assert_eq!(words.len(), ATTRIBUTE_WORDS);
            assert_eq!(take_attributes(&words), Some((attributes, source)));
        }
    }

    #[test]
    fn words_that_are_no_attributes_are_refused() {
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
