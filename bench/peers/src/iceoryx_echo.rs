//! Request-response pattern of iceoryx2. Each side writes its payload to a loaned slot of shared memory, and the other
//! side reads every cache line in place. Both sides poll.

use crate::meter::pin;
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::{Stopwatch, nanoseconds};
use crate::{Exchange, server};
use iceoryx2::pending_response::PendingResponse;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::PortFactory as _;
use iceoryx2::service::port_factory::request_response::PortFactory;
use std::collections::VecDeque;
use std::fmt::Display;
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Ipc = ipc::Service;
type Echo = PortFactory<Ipc, [u8], (), [u8], ()>;
type Pending = PendingResponse<Ipc, [u8], (), [u8], ()>;

/// Maximum time for which the client waits for the server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Limits the log to errors. Otherwise iceoryx2 would warn about a missing configuration file.
fn quiet() {
    set_log_level(LogLevel::Error);
}

fn named(error: impl Display) -> String {
    format!("iceoryx2: {error}")
}

fn read(payload: &[u8]) {
    black_box(payload.iter().step_by(64).fold(0_u64, |sum, byte| sum.wrapping_add(u64::from(*byte))));
}

/// Opens the service with capacity for the calls in flight.
fn echo(node: &Node<Ipc>, name: &str, outstanding: usize) -> Result<Echo, String> {
    let name = ServiceName::new(name).map_err(named)?;
    node.service_builder(&name)
        .request_response::<[u8], [u8]>()
        .max_active_requests_per_client(outstanding)
        .max_response_buffer_size(1)
        .max_clients(1)
        .max_servers(1)
        .open_or_create()
        .map_err(named)
}

/// Serves until standard input is closed.
///
/// # Errors
/// Returns errors from iceoryx2.
pub(crate) fn serve(exchange: &Exchange) -> Result<(), String> {
    exchange.cores().map_or(Ok(()), |cores| pin::to(cores.server))?;
    quiet();
    let node = NodeBuilder::new().create::<Ipc>().map_err(named)?;
    let name = format!("trunkline-bench-{}", std::process::id());
    let service = echo(&node, &name, exchange.outstanding)?;
    let server =
        service.server_builder().initial_max_slice_len(exchange.reply.max(1)).create().map_err(named)?;
    server::announce(&name)?;
    let (is_over, reply) = (Arc::new(AtomicBool::new(false)), vec![1; exchange.reply]);
    let ended = Arc::clone(&is_over);
    server::at_end(move || ended.store(true, Ordering::Relaxed));
    while !is_over.load(Ordering::Relaxed) {
        let Some(request) = server.receive().map_err(named)? else {
            spin_loop();
            continue;
        };
        read(request.payload());
        let response = request.loan_slice_uninit(reply.len()).map_err(named)?;
        response.write_from_slice(&reply).send().map_err(named)?;
    }
    Ok(())
}

/// Measures calls to a server.
///
/// # Errors
/// Returns errors from iceoryx2, or an error if there is no server.
pub(crate) fn measure(exchange: &Exchange, name: &str) -> Result<Sample, String> {
    quiet();
    let node = NodeBuilder::new().create::<Ipc>().map_err(named)?;
    let service = echo(&node, name, exchange.outstanding)?;
    let client =
        service.client_builder().initial_max_slice_len(exchange.size.max(1)).create().map_err(named)?;
    let limit = Instant::now() + PATIENCE;
    while service.dynamic_config().number_of_servers() == 0 {
        if Instant::now() > limit {
            return Err("iceoryx2: the server does not appear".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let payload = vec![1; exchange.size];
    let send = || -> Result<Pending, String> {
        let request = client.loan_slice_uninit(payload.len()).map_err(named)?;
        request.write_from_slice(&payload).send().map_err(named)
    };
    let watch = Stopwatch::start();
    let mut recorder = Recorder::new(nanoseconds(exchange.measured()));
    let mut pending = VecDeque::with_capacity(exchange.outstanding);
    for _ in 0..exchange.outstanding {
        pending.push_back((watch.now_ns(), send()?));
    }
    while let Some((began_ns, oldest)) = pending.pop_front() {
        let reply = loop {
            if let Some(reply) = oldest.receive().map_err(named)? {
                break reply;
            }
            spin_loop();
        };
        read(reply.payload());
        if !recorder.ended(began_ns, watch.now_ns()) {
            break;
        }
        drop((reply, oldest));
        pending.push_back((watch.now_ns(), send()?));
    }
    recorder.finish()
}
