//! The states of queue pairs.

/// State of a QP (`ibv_qp_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[allow(missing_docs, reason = "the variants are the names of ibv_qp_state")]
pub enum QpState {
    #[default]
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueDrained = 4,
    SendQueueError = 5,
    Error = 6,
}

impl QpState {
    /// All states, by code.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrained,
        Self::SendQueueError,
        Self::Error,
    ];

    /// Returns the state's code in verbs.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the state of a code, if the code is valid.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| u32::from(state.code()) == code)
    }
}
