//! Access rights to memory regions, and access rights that queue pairs grant.

bitflags::bitflags! {
    /// Access rights to a memory region, or the rights that a QP grants to its peer (`ibv_access_flags`). Local operations
    /// may always read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// Allows local writes by receives, READ responses and results of atomics.
        const LOCAL_WRITE = 1;
        /// Allows the peer to perform RDMA WRITEs.
        const REMOTE_WRITE = 1 << 1;
        /// Allows the peer to perform RDMA READs.
        const REMOTE_READ = 1 << 2;
        /// Allows the peer to perform atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}
