//! Legal changes to a QP, as listed in contract E1 to E3.
//!
//! Providers without a kernel driver call [`check_transition`] before they change a QP. The module has no state.
#![allow(missing_docs, reason = "the masks have the names of ibv_qp_attr_mask")]

use crate::{QpModify, QpState, QpType};

bitflags::bitflags! {
    /// The attributes named by a change (`ibv_qp_attr_mask`, without `STATE`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AttributeMask: u32 {
        const CURRENT_STATE = 1;
        const PKEY_INDEX = 1 << 1;
        const PORT = 1 << 2;
        const ACCESS_FLAGS = 1 << 3;
        const AV = 1 << 4;
        const PATH_MTU = 1 << 5;
        const DEST_QPN = 1 << 6;
        const RQ_PSN = 1 << 7;
        const SQ_PSN = 1 << 8;
        const MAX_DEST_RD_ATOMIC = 1 << 9;
        const MAX_QP_RD_ATOMIC = 1 << 10;
        const MIN_RNR_TIMER = 1 << 11;
        const TIMEOUT = 1 << 12;
        const RETRY_CNT = 1 << 13;
        const RNR_RETRY = 1 << 14;
    }
}

/// Reason why a change is refused. libibverbs returns `EINVAL` in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// The transition does not exist.
    #[error("a QP cannot go from {from:?} to {to:?}")]
    NoSuchTransition {
        /// The current state.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// `current_state` is not the QP's state.
    #[error("the QP is in {actual:?}, not in the current_state of the change")]
    OtherState {
        /// The current state.
        actual: QpState,
    },
    /// Required attributes of the transition are missing.
    #[error("required attributes of this transition are missing: {0:?}")]
    Missing(AttributeMask),
    /// The change contains attributes that the transition does not allow.
    #[error("attributes not allowed in this transition: {0:?}")]
    Excess(AttributeMask),
}

/// Returns the attributes in a change, except attributes that the kernel silently drops for the QP type (contract E3).
#[must_use]
pub fn effective_mask(qp_type: QpType, change: &QpModify) -> AttributeMask {
    use AttributeMask as M;
    let named = [
        (change.current_state.is_some(), M::CURRENT_STATE),
        (change.pkey_index.is_some(), M::PKEY_INDEX),
        (change.port.is_some(), M::PORT),
        (change.access.is_some(), M::ACCESS_FLAGS),
        (change.address_vector.is_some(), M::AV),
        (change.path_mtu.is_some(), M::PATH_MTU),
        (change.destination_qp.is_some(), M::DEST_QPN),
        (change.rq_psn.is_some(), M::RQ_PSN),
        (change.sq_psn.is_some(), M::SQ_PSN),
        (change.max_dest_rd_atomic.is_some(), M::MAX_DEST_RD_ATOMIC),
        (change.max_rd_atomic.is_some(), M::MAX_QP_RD_ATOMIC),
        (change.min_rnr_timer.is_some(), M::MIN_RNR_TIMER),
        (change.timeout.is_some(), M::TIMEOUT),
        (change.retry_count.is_some(), M::RETRY_CNT),
        (change.rnr_retry.is_some(), M::RNR_RETRY),
    ];
    let dropped = match qp_type {
        QpType::XrcIni => M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        QpType::XrcTgt => M::MAX_QP_RD_ATOMIC | M::RETRY_CNT | M::RNR_RETRY,
        QpType::Rc => M::empty(),
    };
    let mask: M = named.into_iter().filter_map(|(is, bit)| is.then_some(bit)).collect();
    mask - dropped
}

/// Checks a change to a QP in state `from`, and returns the state after the change.
///
/// # Errors
/// The first rule that the change violates.
pub fn check_transition(
    qp_type: QpType,
    from: QpState,
    change: &QpModify,
) -> Result<QpState, TransitionError> {
    if change.current_state.is_some_and(|believed| believed != from) {
        return Err(TransitionError::OtherState { actual: from });
    }
    let to = change.state.unwrap_or(from);
    let (required, optional) =
        allowed(qp_type, from, to).ok_or(TransitionError::NoSuchTransition { from, to })?;
    let mask = effective_mask(qp_type, change);
    if !mask.contains(required) {
        return Err(TransitionError::Missing(required - mask));
    }
    let excess = mask - required - optional;
    if !excess.is_empty() {
        return Err(TransitionError::Excess(excess));
    }
    Ok(to)
}

/// Returns the required and optional attributes of a transition. Alternate paths, path migration and
/// `EN_SQD_ASYNC_NOTIFY` have no field in [`QpModify`], so they do not appear.
fn allowed(qp_type: QpType, from: QpState, to: QpState) -> Option<(AttributeMask, AttributeMask)> {
    use AttributeMask as M;
    use QpState as S;
    let receives = qp_type != QpType::XrcIni;
    let sends = qp_type != QpType::XrcTgt;
    let only = |condition: bool, mask: M| if condition { mask } else { M::empty() };
    let to_rts = M::CURRENT_STATE | M::ACCESS_FLAGS | only(receives, M::MIN_RNR_TIMER);
    let basics = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    Some(match (from, to) {
        (_, S::Reset) => (M::empty(), M::empty()),
        (S::Reset, S::Error) => return None,
        (_, S::Error) => (M::empty(), M::empty()),
        (S::Reset, S::Init) => (basics, M::empty()),
        (S::Init, S::Init) => (M::empty(), basics),
        (S::Init, S::ReadyToReceive) => (
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | only(receives, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
            M::ACCESS_FLAGS | M::PKEY_INDEX,
        ),
        (S::ReadyToReceive, S::ReadyToSend) => {
            (M::TIMEOUT | M::SQ_PSN | only(sends, M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC), to_rts)
        }
        (S::ReadyToSend, S::ReadyToSend) | (S::SendQueueDrained, S::ReadyToSend) => (M::empty(), to_rts),
        (S::SendQueueError, S::ReadyToSend) if qp_type == QpType::Rc => {
            (M::empty(), M::CURRENT_STATE | M::ACCESS_FLAGS | M::MIN_RNR_TIMER)
        }
        (S::ReadyToSend, S::SendQueueDrained) => (M::empty(), M::empty()),
        (S::SendQueueDrained, S::SendQueueDrained) => (
            M::empty(),
            M::PORT
                | M::AV
                | M::TIMEOUT
                | M::ACCESS_FLAGS
                | M::PKEY_INDEX
                | only(sends, M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC)
                | only(receives, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, AddressVector, Gid, Mtu, Psn, QpNumber};

    const TYPES: [QpType; 3] = [QpType::Rc, QpType::XrcIni, QpType::XrcTgt];

    fn to_rtr() -> QpModify {
        QpModify {
            state: Some(QpState::ReadyToReceive),
            address_vector: Some(AddressVector {
                source_gid_index: 0,
                destination: Gid::default(),
                port: 1,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
            }),
            path_mtu: Some(Mtu::Mtu1024),
            destination_qp: Some(QpNumber::new(17)),
            rq_psn: Some(Psn::new(1)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            ..QpModify::default()
        }
    }

    fn to_rts() -> QpModify {
        QpModify {
            state: Some(QpState::ReadyToSend),
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(Psn::new(1)),
            max_rd_atomic: Some(1),
            ..QpModify::default()
        }
    }

    #[test]
    fn rc_style_masks_work_on_every_type() {
        // contract E3
        for qp_type in TYPES {
            assert_eq!(check_transition(qp_type, QpState::Init, &to_rtr()), Ok(QpState::ReadyToReceive));
            assert_eq!(
                check_transition(qp_type, QpState::ReadyToReceive, &to_rts()),
                Ok(QpState::ReadyToSend)
            );
        }
    }

    #[test]
    fn missing_or_extra_attribute_is_refused() {
        // contract E1
        let mut short = to_rtr();
        short.rq_psn = None;
        let mut long = to_rtr();
        long.timeout = Some(14);
        for qp_type in TYPES {
            assert_eq!(
                check_transition(qp_type, QpState::Init, &short),
                Err(TransitionError::Missing(AttributeMask::RQ_PSN))
            );
            assert_eq!(
                check_transition(qp_type, QpState::Init, &long),
                Err(TransitionError::Excess(AttributeMask::TIMEOUT))
            );
        }
        let mut tgt = to_rtr();
        tgt.min_rnr_timer = None;
        assert!(check_transition(QpType::XrcTgt, QpState::Init, &tgt).is_err());
        assert!(check_transition(QpType::XrcIni, QpState::Init, &tgt).is_ok());
    }

    #[test]
    fn transitions_to_error_and_reset_accept_only_state() {
        // contract E2
        let error = QpModify { state: Some(QpState::Error), ..QpModify::default() };
        let reset = QpModify { state: Some(QpState::Reset), ..QpModify::default() };
        assert!(check_transition(QpType::XrcIni, QpState::Reset, &error).is_err());
        assert!(check_transition(QpType::XrcIni, QpState::Init, &error).is_ok());
        assert!(check_transition(QpType::XrcIni, QpState::Error, &reset).is_ok());
        let mut extra = error;
        extra.access = Some(Access::empty());
        assert!(check_transition(QpType::XrcIni, QpState::Init, &extra).is_err());
        let skip = QpModify { state: Some(QpState::ReadyToSend), ..QpModify::default() };
        assert!(check_transition(QpType::XrcIni, QpState::Init, &skip).is_err());
    }
}
