//! Services that differ only in their names, so that a node can serve many of them.

use crate::calls::echo::Mirror;
use std::net::SocketAddr;
use trunkline::{Bytes, NodeBuilder, PollerContext, Status};

const MOST: u16 = 16;

/// Defines a module for each name, a function that adds the first `count` services to a builder, and a client for any of
/// the services.
macro_rules! services {
    ($($module:ident $number:literal $name:literal,)*) => {
        $(#[allow(dead_code, reason = "only local clients are used")]
        mod $module {
            use trunkline::{Bytes, Status};

            /// Returns its payload.
            #[trunkline::service(name = $name, version = 1)]
            pub(crate) trait Echo {
                async fn echo(&self, payload: Bytes) -> Result<Bytes, Status>;
            }

            impl Echo for super::Mirror {
                async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
                    Ok(payload)
                }
            }
        })*

        pub(crate) enum Local {
            $(#[allow(non_camel_case_types, reason = "named like the module")] $module($module::EchoLocal),)*
        }

        impl Local {
            /// Connects a client to the service with this number.
            ///
            /// # Errors
            /// Returns an error if there is no such service, or if the client cannot connect.
            pub(crate) fn connect(context: &PollerContext, server: SocketAddr, number: u16) -> Result<Self, Status> {
                match number {
                    $($number => $module::EchoLocal::connect(context, server).map(Self::$module),)*
                    _ => Err(Status::invalid_argument(format!("there are {MOST} services, counted from 0"))),
                }
            }

            pub(crate) async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
                match self {
                    $(Self::$module(client) => client.echo(payload).await,)*
                }
            }
        }

        /// Adds the first `count` services to a builder.
        pub(super) fn serve(builder: NodeBuilder, count: u16) -> NodeBuilder {
            $(let builder = if $number < count {
                builder.serve($module::EchoServer::new(Mirror))
            } else {
                builder
            };)*
            builder
        }
    };
}

services! {
    s0 0 "trunkline.bench.Echo0",
    s1 1 "trunkline.bench.Echo1",
    s2 2 "trunkline.bench.Echo2",
    s3 3 "trunkline.bench.Echo3",
    s4 4 "trunkline.bench.Echo4",
    s5 5 "trunkline.bench.Echo5",
    s6 6 "trunkline.bench.Echo6",
    s7 7 "trunkline.bench.Echo7",
    s8 8 "trunkline.bench.Echo8",
    s9 9 "trunkline.bench.Echo9",
    s10 10 "trunkline.bench.Echo10",
    s11 11 "trunkline.bench.Echo11",
    s12 12 "trunkline.bench.Echo12",
    s13 13 "trunkline.bench.Echo13",
    s14 14 "trunkline.bench.Echo14",
    s15 15 "trunkline.bench.Echo15",
}
