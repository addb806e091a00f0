//! The names of services and methods, with the hashes that identify them on the wire.

/// A service, as generated stubs describe it.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceName {
    /// Its name on the wire.
    pub name: &'static str,
    /// The version of the schema that the stubs were generated from. Both sides need the same.
    pub version: u32,
    /// 64-bit FNV-1a of the name.
    pub hash: u64,
}

/// A method of a service, as generated stubs describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodName {
    /// The service that it belongs to.
    pub service: &'static ServiceName,
    /// Its name on the wire.
    pub name: &'static str,
    /// 64-bit FNV-1a of the service's name, a zero byte and the method's name, and of what it sends as raw bytes.
    pub hash: u64,
    /// Whether its calls get no reply.
    pub one_way: bool,
}

impl std::fmt::Display for MethodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.service.name, self.name)
    }
}
