//! Access rights of a memory region or a queue pair.

bitflags::bitflags! {
    /// Access rights of local and remote operations to a region, or the rights that a QP grants its peer
    /// (`ibv_access_flags`). Local operations may always read.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// Local operations may write: receives, READ responses and results of atomics.
        const LOCAL_WRITE = 1;
        /// The peer may RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// The peer may perform atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}
