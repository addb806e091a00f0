//! Other programs that hold UDP port 4791, which are named in an error or a warning.

use crate::common::{LIMIT, until};
use crate::logged::Logged;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use tracing::Level;
use trunkline::{Node, ProviderChoice, StartError, block_on};
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::{
    Folder, Input, Process, fresh_address, is_in_network_namespace, print_line, same_test,
};
use trunkline_transport::NodeOptions;

#[trunkline::service]
trait Greeter {
    async fn greet(&self, name: String) -> String;
}

struct Polite;

impl Greeter for Polite {
    async fn greet(&self, name: String) -> String {
        format!("Good day, {name}!")
    }
}

/// UDP port of RoCEv2.
const PORT: u16 = 4791;
/// Environment variable with the occupied address, for a process that runs the test again.
const TAKEN: &str = "TRUNKLINE_TEST_TAKEN";

fn refusal(address: IpAddr) -> StartError {
    Node::builder().provider(ProviderChoice::Soft).listen((address, 0)).start().unwrap_err()
}

/// Returns the command that runs this test in a separate process.
fn child(test: &str, taken: IpAddr) -> Command {
    let mut command = same_test(module_path!(), test);
    command.env(TAKEN, taken.to_string());
    command
}

#[test]
fn taken_port_names_its_holder_and_remedy() {
    let address = fresh_address().ip();
    let taken = UdpSocket::bind((address, PORT)).unwrap();
    let text = refusal(address).to_string();
    let pid = format!("process {} (", std::process::id());
    for words in [address.to_string().as_str(), "4791", &pid, "another one of 127.0.0.0/8"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    drop(taken);
    // A process that another test is starting holds a copy of the socket until it executes its program.
    drop(until("the port is free", || {
        Node::builder().provider(ProviderChoice::Soft).listen((address, 0)).start().ok()
    }));
}

#[test]
fn error_of_client_with_taken_address_does_not_mention_listening() {
    if let Ok(address) = std::env::var(TAKEN) {
        let error = Node::builder().provider(ProviderChoice::Soft).start().unwrap_err();
        assert!(matches!(error, StartError::BadSetting(_)), "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("cannot make calls from {address}, which TRUNKLINE_ADDRESS ")),
            "{text}"
        );
        assert!(text.contains("4791") && text.contains("set TRUNKLINE_ADDRESS to another"), "{text}");
        assert!(!text.contains("listen"), "{text}");
        return;
    }
    let address = fresh_address().ip();
    let _taken = UdpSocket::bind((address, PORT)).unwrap();
    let test = "error_of_client_with_taken_address_does_not_mention_listening";
    let output = child(test, address).env("TRUNKLINE_ADDRESS", address.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn host_with_one_family_serves_clients_and_names_of_both() {
    let test = "host_with_one_family_serves_clients_and_names_of_both";
    if !is_in_network_namespace(module_path!(), test, "ip address del 127.0.0.1/8 dev lo") {
        return;
    }
    let soft = || Node::builder().provider(ProviderChoice::Soft);
    // `localhost` on most hosts.
    let localhost: [SocketAddr; 2] = ["127.0.0.1:0", "[::1]:0"].map(|text| text.parse().unwrap());
    let server = soft().listen(&localhost[..]).serve(GreeterServer::new(Polite)).start().unwrap();
    assert!(server.local_address().is_ipv6());
    let client = soft().start().unwrap();
    let greeter = GreeterClient::new(client.channel(server.local_address())).with_timeout(LIMIT);
    assert_eq!(block_on(greeter.greet("trunk".into())).unwrap(), "Good day, trunk!");
    let error = soft().listen("127.0.0.1:0").start().unwrap_err();
    assert!(error.to_string().starts_with("cannot listen on 127.0.0.1:0: "), "{error}");
}

/// Runs a node at the address until standard input is closed.
fn hold(address: &str) {
    let address = address.parse::<IpAddr>().unwrap();
    let _node = Node::builder().provider(ProviderChoice::Soft).listen((address, 0)).start().unwrap();
    print_line("ready");
    let _end = Input::open().wait();
}

#[test]
fn holder_in_another_runtime_directory_is_named_with_directory() {
    if let Ok(address) = std::env::var(TAKEN) {
        return hold(&address);
    }
    let (address, folder) = (fresh_address().ip(), Folder::new().unwrap());
    let directory = folder.path().join("run");
    let test = "holder_in_another_runtime_directory_is_named_with_directory";
    let mut holder =
        Process::start("holder", child(test, address).env("TRUNKLINE_RUNTIME_DIR", &directory)).unwrap();
    holder.after("ready").unwrap();
    let text = refusal(address).to_string();
    let pid = format!("process {} (", holder.id());
    for words in [address.to_string().as_str(), &pid, directory.to_str().unwrap(), "TRUNKLINE_RUNTIME_DIR"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
}

/// The registry of the killed process says that its port was held by a member.
#[test]
fn port_of_killed_member_taken_by_stranger_is_refused() {
    if let Ok(address) = std::env::var(TAKEN) {
        return hold(&address);
    }
    let (address, folder) = (fresh_address().ip(), Folder::new().unwrap());
    let test = "port_of_killed_member_taken_by_stranger_is_refused";
    let mut member = Process::start("member", &mut child(test, address)).unwrap();
    member.after("ready").unwrap();
    member.kill().unwrap();
    let directory = folder.path().join("run");
    let mut stranger =
        Process::start("stranger", child(test, address).env("TRUNKLINE_RUNTIME_DIR", &directory)).unwrap();
    stranger.after("ready").unwrap();
    let text = refusal(address).to_string();
    assert!(text.contains(&format!("process {} (", stranger.id())), "{text}");
}

#[test]
fn refusal_advises_restart_of_holder_with_emptied_runtime_directory() {
    if let Ok(address) = std::env::var(TAKEN) {
        return hold(&address);
    }
    let (address, folder) = (fresh_address().ip(), Folder::new().unwrap());
    let directory = folder.path().join("run");
    let test = "refusal_advises_restart_of_holder_with_emptied_runtime_directory";
    let mut holder =
        Process::start("holder", child(test, address).env("TRUNKLINE_RUNTIME_DIR", &directory)).unwrap();
    holder.after("ready").unwrap();
    for entry in std::fs::read_dir(&directory).unwrap() {
        std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let text = refusal(address).to_string();
    let emptied = format!("{}, emptied while the process ran", directory.display());
    for words in [&format!("process {} (", holder.id()), emptied.as_str(), "restart that one"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    assert!(!text.contains("give both programs the same"), "{text}");
}

/// The port holder receives the requests for all processes at its address.
#[test]
fn call_failed_by_stopped_port_holder_names_process() {
    let node = |address| Node::builder().provider(ProviderChoice::Soft).listen((address, 0));
    if let Ok(address) = std::env::var(TAKEN) {
        let _node = node(address.parse::<IpAddr>().unwrap()).start().unwrap();
        print_line("ready");
        let _end = Input::open().wait();
        return;
    }
    let address = fresh_address().ip();
    let test = "call_failed_by_stopped_port_holder_names_process";
    let mut holder = Process::start("holder", &mut child(test, address)).unwrap();
    holder.after("ready").unwrap();
    let server = node(address).serve(GreeterServer::new(Polite)).start().unwrap();
    let caller = node(fresh_address().ip()).start().unwrap();
    let greeter = GreeterClient::new(caller.channel(server.local_address())).with_timeout(LIMIT);
    holder.stop();
    let expected =
        format!("process {}, which holds UDP port 4791 at {address} on this host, is stopped", holder.id());
    // Before the next attempt begins, the previous attempt may end and later calls may be refused.
    for _ in 0..2 {
        until("the call names the process", || {
            let status = block_on(greeter.greet("trunk".into())).unwrap_err();
            status.message().contains(&expected).then_some(())
        });
    }
    drop(holder);
    until("the call succeeds", || block_on(greeter.greet("trunk".into())).ok());
}

#[test]
fn node_listening_outside_device_addresses_warns() {
    let (named, other) = (fresh_address().ip(), fresh_address().ip());
    let warnings = Logged::at(Level::WARN);
    let start = |listen: IpAddr| {
        let device = SoftOptions { addresses: vec![named], ..SoftOptions::from_env().unwrap() };
        let node = Node::builder().transport(NodeOptions::new().device(device)).listen((listen, 0));
        tracing::subscriber::with_default(warnings.clone(), || node.start())
    };
    let _started = start(other);
    let text = warnings.lines().join("\n");
    for words in [
        named.to_string().as_str(),
        &other.to_string(),
        "TRUNKLINE_ADDRESS",
        "listen on one of the addresses",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    warnings.lines().clear();
    drop(start(named).unwrap());
    assert!(
        !warnings.lines().iter().any(|line| line.contains("TRUNKLINE_ADDRESS")),
        "{:?}",
        warnings.lines()
    );
}

/// The device has two addresses. Another program holds the port at the first address.
#[test]
fn wildcard_listener_warns_of_occupied_address_and_is_reached_at_another() {
    if let Ok(taken) = std::env::var(TAKEN) {
        let warnings = Logged::at(Level::WARN);
        let start = || {
            let any = Node::builder().provider(ProviderChoice::Soft).allow_unauthenticated(true);
            any.listen("0.0.0.0:0").serve(GreeterServer::new(Polite)).start().unwrap()
        };
        let server = tracing::subscriber::with_default(warnings.clone(), start);
        let warnings = warnings.lines().join("\n");
        for words in [taken.as_str(), "process ", "4791", "another one of 127.0.0.0/8"] {
            assert!(warnings.contains(words), "{words:?} is not in {warnings}");
        }
        let reached: SocketAddr = server.local_address();
        assert!(!reached.ip().is_unspecified() && reached.ip().to_string() != taken, "{reached}");
        let caller =
            Node::builder().provider(ProviderChoice::Soft).listen((reached.ip(), 0)).start().unwrap();
        let greeter = GreeterClient::new(caller.channel(reached));
        assert_eq!(block_on(greeter.greet("trunk".into())), Ok("Good day, trunk!".to_owned()));
        print_line("reached");
        return;
    }
    let (taken, free) = (fresh_address().ip(), fresh_address().ip());
    let holder = UdpSocket::bind((taken, PORT)).unwrap();
    let test = "wildcard_listener_warns_of_occupied_address_and_is_reached_at_another";
    let mut command = child(test, taken);
    command.env("TRUNKLINE_ADDRESS", format!("{taken},{free}"));
    Process::start("listener", &mut command).unwrap().after("reached").unwrap();
    drop(holder);
}
