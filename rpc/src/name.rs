//! The names of services and methods on the wire.

/// A service: its name, the schema version that its stubs were made from, its hash.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceName {
    /// Name.
    pub name: &'static str,
    /// Schema version.
    pub version: u32,
    /// FNV-1a of the name.
    pub hash: u64,
}

/// A method of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodName {
    /// Its service.
    pub service: &'static ServiceName,
    /// Name.
    pub name: &'static str,
    /// FNV-1a of the service's name, a zero byte and the method's name.
    pub hash: u64,
}

impl std::fmt::Display for MethodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.service.name, self.name)
    }
}
