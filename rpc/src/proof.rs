//! What emitted code proves of a service's types. The macro sees their names only: it decides by these how a value is
//! sent, and the compiler refuses a type that has the name and is another one.

use bytes::Bytes;

/// Is [`Bytes`]: the types by this name that are sent as they are.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `trunkline::Bytes`",
    label = "a type named `Bytes` is sent as raw bytes, so it must be `trunkline::Bytes`",
    note = "give a type of your own another name here: `type Blob = {Self};`"
)]
pub trait IsBytes {}

impl IsBytes for Bytes {}

/// Does nothing; it compiles only for [`Bytes`].
pub const fn is_bytes<T: IsBytes>() {}
