//! Several processes at one address: each is reached, whoever holds port 4791, and whoever dies.
//!
//! The test starts itself again as the processes.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;
#[path = "one_address/member.rs"]
mod member;

use member::Orders;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long anything may take on a loaded machine.
const BOUND: Duration = Duration::from_secs(120);

/// A process of the group. Without the variable, a test of its own that has nothing to do.
#[test]
fn member() {
    let Ok(text) = std::env::var(Orders::VARIABLE) else { return };
    member::run(Orders::from_text(&text));
}

/// A process, killed if the test ends early.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// What it said and nobody asked for yet.
    said: Vec<String>,
}

impl Process {
    fn start(orders: &Orders, runtime: &PathBuf) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["member", "--exact", "--nocapture"])
            .env(Orders::VARIABLE, orders.to_text())
            .env("TRUNKLINE_RUNTIME_DIR", runtime)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { input: child.stdin.take(), child, lines, said: Vec::new() }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    /// The rest of a line that starts so, if it was said.
    fn has_said(&mut self, start: &str) -> Option<String> {
        self.said.extend(self.lines.try_iter());
        let place = self.said.iter().position(|line| line.starts_with(start))?;
        self.said.remove(place).strip_prefix(start).map(str::to_owned)
    }

    /// Waits for a line that starts so; answers the rest.
    fn line(&mut self, start: &str) -> String {
        let until = Instant::now() + BOUND;
        loop {
            if let Some(rest) = self.has_said(start) {
                return rest;
            }
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("it never said {start:?}"));
            self.said.push(line);
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Processes at one address, the first of which holds port 4791.
struct Group {
    orders: Orders,
    processes: Vec<Process>,
    /// Where each listens.
    ports: Vec<String>,
    /// Removed at the end, after the processes.
    runtime: Runtime,
}

struct Runtime(PathBuf);

impl Drop for Runtime {
    fn drop(&mut self) {
        let _left = std::fs::remove_dir_all(&self.0);
    }
}

impl Group {
    fn start(address: IpAddr, messages: u32, victim: Option<usize>, faults: &str) -> Self {
        let name =
            format!("trunkline-one-{}-{}", std::process::id(), address.to_string().replace([':', '.'], "-"));
        let runtime = Runtime(std::env::temp_dir().join(name));
        let orders = Orders { index: 0, members: 3, address, messages, victim, faults: faults.to_owned() };
        let mut group = Self { orders, processes: Vec::new(), ports: Vec::new(), runtime };
        for index in 0..group.orders.members {
            // In this order, so that the first is the holder.
            let (process, ports) = group.process(index);
            group.processes.push(process);
            group.ports.push(ports);
        }
        let ports = group.ports.join(" ");
        for process in &mut group.processes {
            process.tell(&format!("PEERS {ports}"));
        }
        group
    }

    /// Starts a process; says where it listens.
    fn process(&mut self, index: usize) -> (Process, String) {
        self.orders.index = index;
        let mut process = Process::start(&self.orders, &self.runtime.0);
        let ports = process.line("READY ");
        (process, ports)
    }

    /// Starts another process in the place of the first, which has died, and joins it to the others.
    fn replace_the_first(&mut self) {
        for process in &mut self.processes {
            process.line("DONE");
        }
        self.orders.victim = None;
        let (mut process, ports) = self.process(0);
        self.ports[0] = ports;
        let ports = self.ports.join(" ");
        for process in &mut self.processes {
            process.tell(&format!("AGAIN {ports}"));
        }
        for process in &mut self.processes {
            process.line("ON");
        }
        process.tell(&format!("PEERS {ports}"));
        process.line("DONE");
        self.processes.push(process);
        for process in &mut self.processes[..2] {
            process.line("AGAIN-DONE");
        }
    }

    /// Waits until all that are left are done, lets them connect anew, and ends them.
    fn finish(&mut self, again: bool) -> Vec<String> {
        for process in &mut self.processes {
            process.line("DONE");
        }
        if again {
            let command = format!("AGAIN {}", self.ports.join(" "));
            for process in &mut self.processes {
                process.tell(&command);
            }
            for process in &mut self.processes {
                process.line("AGAIN-DONE");
            }
        }
        self.end()
    }

    /// Ends all that are left. Answers what they counted.
    fn end(&mut self) -> Vec<String> {
        let mut counters = Vec::new();
        for process in &mut self.processes {
            process.tell("QUIT");
            counters.push(process.line("ENDED "));
        }
        for process in &mut self.processes {
            process.input = None;
        }
        for process in &mut self.processes {
            assert!(process.child.wait().unwrap().success());
        }
        counters
    }
}

fn counted(line: &str, name: &str) -> u64 {
    let start = format!("{name}=");
    line.split(' ').find_map(|word| word.strip_prefix(&start)).unwrap().parse().unwrap()
}

#[test]
fn three_processes_talk_all_to_all_and_connect_again() {
    let mut group = Group::start(common::address(), 300, None, "");
    let counters = group.finish(true);
    // The holder handed on; the others got what they got from it, and nobody took anything over.
    assert!(counted(&counters[0], "relayed_to") > 0, "{counters:?}");
    for line in &counters[1..] {
        assert!(counted(line, "relayed_from") > 0, "{counters:?}");
        assert_eq!((counted(line, "took"), counted(line, "nonsense")), (0, 0), "{counters:?}");
    }
}

#[test]
fn with_faults_too() {
    let faults = "drop=0.02,duplicate=0.02,reorder=0.02,corrupt=0.01,seed=11";
    Group::start(common::address(), 150, None, faults).finish(true);
}

fn the_holder_dies(faults: &str) {
    let mut group = Group::start(common::address(), 400, Some(0), faults);
    let holder = group.processes.remove(0);
    for process in &mut group.processes {
        process.line("HALF");
    }
    holder.signal(Signal::SIGKILL);
    let killed = Instant::now();
    let taken = loop {
        if group.processes.iter_mut().any(|process| process.has_said("TOOK").is_some()) {
            break killed.elapsed();
        }
        assert!(killed.elapsed() < BOUND, "nobody took over");
        std::thread::sleep(Duration::from_micros(200));
    };
    // 100 ms of a machine that does nothing else.
    assert!(taken < Duration::from_secs(2), "{taken:?}");
    println!("port 4791 was taken over after {taken:?}");
    let counters = group.finish(true);
    assert_eq!(counters.iter().map(|line| counted(line, "took")).sum::<u64>(), 1, "{counters:?}");
}

#[test]
fn when_the_holder_dies_under_load_the_others_lose_nothing() {
    the_holder_dies("");
}

#[test]
fn when_the_holder_dies_under_load_and_faults_the_others_lose_nothing() {
    the_holder_dies("drop=0.01,duplicate=0.01,reorder=0.01,seed=5");
}

/// The one that comes has the place of the dead one, so that connection messages for the dead reach it.
#[test]
fn another_process_takes_the_place_of_a_dead_one() {
    let mut group = Group::start(common::address(), 200, Some(0), "");
    let holder = group.processes.remove(0);
    for process in &mut group.processes {
        process.line("HALF");
    }
    holder.signal(Signal::SIGKILL);
    group.replace_the_first();
    group.end();
}

#[test]
fn a_holder_that_stands_still_does_not_hold_up_those_that_know_each_other() {
    let mut group = Group::start(common::address(), 400, Some(0), "");
    for process in &mut group.processes {
        process.line("HALF");
    }
    let holder = group.processes.remove(0);
    holder.signal(Signal::SIGSTOP);
    group.finish(false);
}

#[test]
fn ipv6_loopback_serves_several_processes_too() {
    let address: IpAddr = "::1".parse().unwrap();
    // Other tests, and programs of this machine, may be there.
    let free = std::net::UdpSocket::bind((address, 4791));
    if let Err(error) = free {
        eprintln!("SKIPPED: [::1]:4791: {error}");
        return;
    }
    drop(free);
    Group::start(address, 100, None, "").finish(true);
}
