//! Rights of a memory region or a queue pair.

bitflags::bitflags! {
    /// What local and remote work may do with a region, or what a QP lets its peer do
    /// (`ibv_access_flags`). Reading by local work is always allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// Local work (receives, READ destinations) may write.
        const LOCAL_WRITE = 1;
        /// The peer may RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// The peer may perform atomics.
        const REMOTE_ATOMIC = 1 << 3;
    }
}
