//! Messages between two threads over SPSC rings. Small messages are copied, and large buffers are passed by reference.

use super::{Shape, with_server};
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::nanoseconds;
use std::collections::VecDeque;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_machine::rings::spsc::ring;

/// Size of a message in the ring, in bytes. [`stream`] measures larger messages.
const MESSAGE_BYTES: usize = 64;

/// Exchanges 64-byte messages, with several of them in flight.
pub(super) fn exchange(shape: &Shape) -> Result<Sample, String> {
    let capacity = shape.outstanding.next_power_of_two();
    let (mut to_server, mut requests) = ring::<[u8; MESSAGE_BYTES]>(capacity);
    let (mut to_client, mut replies) = ring::<[u8; MESSAGE_BYTES]>(capacity);
    let serve = move |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            while let Some(message) = requests.pop() {
                to_client.push(message).map_err(|_| "its ring is full")?;
            }
            spin_loop();
        }
        Ok(())
    };
    with_server(shape.cores.map(|cores| cores.server), serve, |watch| {
        let mut recorder = Recorder::new(nanoseconds(shape.measured));
        let mut under_way = 0;
        loop {
            let began = watch.now_ns();
            while under_way < shape.outstanding && to_server.push(black_box([0x5a; MESSAGE_BYTES])).is_ok() {
                under_way += 1;
            }
            let mut arrived = 0;
            while let Some(message) = replies.pop() {
                black_box(message);
                arrived += 1;
            }
            under_way -= arrived;
            if arrived > 0 && !recorder.ended_many(began, watch.now_ns(), arrived as u64) {
                return recorder.finish();
            }
        }
    })
}

/// Fills buffers on one core, which the other core reads in place, with several of them in flight.
pub(super) fn stream(shape: &Shape) -> Result<Sample, String> {
    let capacity = shape.outstanding.next_power_of_two();
    let (mut to_server, mut filled) = ring::<Vec<u8>>(capacity);
    let (mut to_client, mut read) = ring::<Vec<u8>>(capacity);
    let serve = move |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            while let Some(buffer) = filled.pop() {
                // Reading one byte of each cache line transfers the buffer to this core.
                black_box(buffer.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
                to_client.push(buffer).map_err(|_| "its ring is full")?;
            }
            spin_loop();
        }
        Ok(())
    };
    with_server(shape.cores.map(|cores| cores.server), serve, |watch| {
        let source = vec![0x5a; shape.size.max(1)];
        let mut free = vec![source.clone(); shape.outstanding];
        let mut began = VecDeque::new();
        let mut recorder = Recorder::new(nanoseconds(shape.measured));
        loop {
            if let Some(mut buffer) = free.pop() {
                began.push_back(watch.now_ns());
                buffer.copy_from_slice(&source);
                to_server.push(buffer).map_err(|_| "its ring is full")?;
            }
            while let Some(buffer) = read.pop() {
                free.push(buffer);
                let due = began.pop_front().ok_or("a buffer that was not sent")?;
                if !recorder.ended(due, watch.now_ns()) {
                    return recorder.finish();
                }
            }
        }
    })
}
