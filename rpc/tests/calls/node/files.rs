//! Nodes whose certificates, roots, revocation lists and policies are replaced at run time.

use super::identity::{self, Authority, authority, client, issue, revocation_list, service, trust};
use crate::common::{LIMIT, node, until};
use crate::logged::Logged;
use rcgen::{CertificateParams, KeyPair, SerialNumber, date_time_ymd};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trunkline::{Code, Node, NodeBuilder, StartError, block_on};
use trunkline_testkit::{Folder, runs_alone};

/// First and last year in which certificates are valid.
const VALID: [i32; 2] = [2020, 4000];
const POLICY_RELOADED: &str = "policy file reloaded";

/// The files of a node.
struct Files {
    folder: Folder,
    log: &'static Logged,
}

impl Files {
    /// Writes files that contain this identity, these roots, and a policy that allows all calls.
    fn new(identity: &[String; 2], roots: &str) -> Self {
        let files = Self { folder: Folder::new().unwrap(), log: Logged::by_all() };
        files.replace("key", &identity[1]);
        fs::set_permissions(files.path("key"), PermissionsExt::from_mode(0o600)).unwrap();
        files.replace("pem", &identity[0]);
        files.replace("roots", roots);
        files.allow("*.example");
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Replaces a file atomically.
    fn replace(&self, name: &str, content: &str) {
        let new = self.path("new");
        fs::write(&new, content).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    /// Allows all calls from callers that match this pattern.
    fn allow(&self, peers: &str) {
        self.replace("policy", &format!("[[allow]]\npeers = ['{peers}']\ncalls = ['*']\n"));
    }

    /// Returns a builder for a node that uses these files and checks them often.
    fn node(&self) -> NodeBuilder {
        let node = node()
            .exempt_local_user(false)
            .identity_files(self.path("pem"), self.path("key"))
            .trust_files(self.path("roots"));
        node.policy_file(self.path("policy")).look_at_files_every(Duration::from_millis(2))
    }

    /// Returns the number of log lines that contain a file's name and a text.
    fn logged(&self, name: &str, text: &str) -> usize {
        let path = self.path(name);
        let path = path.to_str().unwrap();
        self.log.lines().iter().filter(|line| line.contains(path) && line.contains(text)).count()
    }

    /// Makes a change, and waits for a new log line that contains a file's name and a text.
    fn after(&self, change: impl FnOnce(), name: &str, text: &str) {
        let before = self.logged(name, text);
        change();
        until(text, || (self.logged(name, text) > before).then_some(()));
    }

    /// Replaces the key and then the certificate, and waits until both are in use.
    fn renew(&self, identity: &[String; 2]) {
        let replace = || {
            self.replace("key", &identity[1]);
            self.replace("pem", &identity[0]);
        };
        self.after(replace, "pem", "new sessions use them");
    }

    /// Waits until the node has checked all files once more.
    fn looks(&self) {
        // The thread checks the policy first, so between two changes of the policy it checks all other files.
        for _ in 0..2 {
            self.after(|| self.allow("*.example"), "policy", POLICY_RELOADED);
        }
    }
}

/// Issues a certificate for a principal that also contains the name expected by clients.
fn issue_pem(issuer: &Authority, name: &str, years: [i32; 2]) -> [String; 2] {
    identity::issue_pem(issuer, &format!("{name} server.example"), years)
}

/// Adds an identity with such a certificate.
fn named(builder: NodeBuilder, root: &Authority, name: &str) -> NodeBuilder {
    identity::named(builder, root, &format!("{name} server.example"))
}

/// Returns the name that a node proves to a new peer, as seen by a handler of the peer.
fn proves(node: &Node, peer: NodeBuilder) -> Option<String> {
    let peer = peer.serve(service().0).start().unwrap();
    block_on(client(node, &peer).caller()).unwrap()
}

#[test]
fn calls_succeed_during_ten_replacements_under_load() {
    let root = authority("root");
    let peer = || named(node(), &root, "peer.example");
    let files = Files::new(&issue_pem(&root, "n0.example", VALID), &root.pem());
    let own = files.node().serve(service().0).start().unwrap();
    let (server, is_over) = (peer().serve(service().0).start().unwrap(), AtomicBool::new(false));
    block_on(client(&own, &server).caller()).unwrap();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let client = client(&own, &server).with_timeout(LIMIT);
            let mut calls = 0;
            while !is_over.load(Ordering::Relaxed) {
                // The session keeps the name with which it was established.
                assert_eq!(block_on(client.caller()).unwrap().as_deref(), Some("n0.example"));
                calls += 1;
            }
            calls
        });
        for round in 1..=10 {
            let name = format!("n{round}.example");
            files.renew(&issue_pem(&root, &name, [2020, 3000 + round]));
            let is_new = |left: Duration| left < Duration::from_secs(1100 * 365 * 86_400);
            let has_new = || own.report().certificate_expires_in.filter(|left| is_new(*left));
            until("the report has the new certificate", has_new);
            assert_eq!(proves(&own, peer()), Some(name));
            let new = peer().start().unwrap();
            assert_eq!(block_on(client(&new, &own).caller()).unwrap().as_deref(), Some("peer.example"));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
}

#[test]
fn trusted_roots_change_in_running_nodes() {
    let [old, new] = ["old", "new"].map(authority);
    let both = old.pem() + &new.pem();
    let all: Vec<_> = ["a.example", "b.example"]
        .map(|name| (name, Files::new(&issue_pem(&old, name, VALID), &old.pem())))
        .into();
    let [a, b] = [0, 1].map(|at: usize| all[at].1.node().serve(service().0).start().unwrap());
    let calls = || {
        assert_eq!(block_on(client(&a, &b).caller()).unwrap().as_deref(), Some("a.example"));
        assert_eq!(block_on(client(&b, &a).caller()).unwrap().as_deref(), Some("b.example"));
    };
    let fresh = |root| named(node(), root, "c.example").start().unwrap();
    let stranger = |node: &Node| block_on(client(node, &b).caller()).unwrap_err().code();
    calls();
    assert_eq!(stranger(&fresh(&new)), Code::Unauthenticated);
    for (_, files) in &all {
        files.after(|| files.replace("roots", &both), "roots", "new sessions use them");
    }
    calls();
    for (name, files) in &all {
        files.renew(&issue_pem(&new, name, VALID));
    }
    calls();
    for (_, files) in &all {
        files.after(|| files.replace("roots", &new.pem()), "roots", "new sessions use them");
    }
    calls();
    assert_eq!(block_on(client(&fresh(&new), &b).caller()).unwrap().as_deref(), Some("c.example"));
    assert_eq!(stranger(&fresh(&old)), Code::Unauthenticated);
}

#[test]
fn unusable_credential_files_leave_previous_files_in_force() {
    let root = authority("root");
    let peer = || named(node(), &root, "peer.example");
    let files = Files::new(&issue_pem(&root, "first.example", VALID), &root.pem());
    let own = files.node().start().unwrap();
    let expired = issue_pem(&root, "expired.example", [2020, 2021]);
    files.replace("key", &expired[1]);
    let text = "its certificate expired on 2021-01-01: renew it";
    files.after(|| files.replace("pem", &expired[0]), "pem", text);
    files.looks();
    assert_eq!(files.logged("pem", text), 1, "once per change");
    assert_eq!(proves(&own, peer()).as_deref(), Some("first.example"));

    let second = issue_pem(&root, "second.example", VALID);
    files.after(|| files.replace("key", &second[1]), "key", "does not match the first certificate");
    assert_eq!(proves(&own, peer()).as_deref(), Some("first.example"));
    files.after(|| files.replace("pem", &second[0]), "pem", "new sessions use them");
    assert_eq!(proves(&own, peer()).as_deref(), Some("second.example"));

    files.after(|| files.replace("roots", "none"), "roots", "no section CERTIFICATE");
    files.after(|| fs::remove_file(files.path("roots")).unwrap(), "roots", "No such file");
    files.after(|| files.replace("roots", &"a".repeat((1 << 20) + 1)), "roots", "more than 1048576 bytes");
    assert_eq!(proves(&own, peer()).as_deref(), Some("second.example"));
    files.after(|| files.replace("roots", &root.pem()), "roots", "new sessions use them");
}

#[test]
fn changed_link_to_files_is_followed() {
    let root = authority("root");
    let files = Files::new(&issue_pem(&root, "first.example", VALID), &root.pem());
    // Kubernetes mounts secrets in this way.
    for (at, name) in ["first.example", "second.example"].into_iter().enumerate() {
        let version = files.path(&format!("..{at}"));
        fs::create_dir(&version).unwrap();
        let [certificate, key] = issue_pem(&root, name, VALID);
        fs::write(version.join("pem"), certificate).unwrap();
        fs::write(version.join("key"), key).unwrap();
    }
    symlink("..0", files.path("..data")).unwrap();
    for name in ["pem", "key"] {
        fs::remove_file(files.path(name)).unwrap();
        symlink(format!("..data/{name}"), files.path(name)).unwrap();
    }
    let own = files.node().start().unwrap();
    assert_eq!(proves(&own, named(node(), &root, "peer.example")).as_deref(), Some("first.example"));
    symlink("..1", files.path("..new")).unwrap();
    let swap = || fs::rename(files.path("..new"), files.path("..data")).unwrap();
    files.after(swap, "pem", "new sessions use them");
    assert_eq!(proves(&own, named(node(), &root, "peer.example")).as_deref(), Some("second.example"));
}

#[test]
fn revocation_list_takes_effect() {
    let root = authority("root");
    let files = Files::new(&issue_pem(&root, "server.example", VALID), &root.pem());
    files.replace("list", &revocation_list(&root, 1));
    let server = files.node().revocation_files([files.path("list")]).serve(service().0).start().unwrap();
    let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
    params.serial_number = Some(SerialNumber::from(77));
    let key = KeyPair::generate().unwrap();
    let pem = params.signed_by(&key, &root).unwrap().pem();
    let caller = || {
        let own = trunkline::identity::Identity::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes());
        let node =
            node().exempt_local_user(false).identity(own.unwrap()).trust(trust(&root)).start().unwrap();
        block_on(client(&node, &server).caller())
    };
    assert_eq!(caller().unwrap().as_deref(), Some("a.example"));
    files.after(|| files.replace("list", &revocation_list(&root, 77)), "list", "new sessions use them");
    let status = caller().unwrap_err();
    assert!(status.message().contains("a certificate of the chain is revoked"), "{status}");
}

#[test]
fn changed_policy_file_takes_effect_without_restart() {
    let root = authority("root");
    let files = Files::new(&issue_pem(&root, "server.example", VALID), &root.pem());
    let server = files.node().serve(service().0).start().unwrap();
    let node = named(node(), &root, "a.example").start().unwrap();
    let client = client(&node, &server);
    assert_eq!(block_on(client.caller()).unwrap().as_deref(), Some("a.example"));
    files.after(|| files.allow("b.example"), "policy", POLICY_RELOADED);
    assert_eq!(block_on(client.caller()).unwrap_err().code(), Code::PermissionDenied);
    files.after(|| files.replace("policy", "[[allow]]"), "policy", "line 1: missing field `peers`");
    assert_eq!(block_on(client.caller()).unwrap_err().code(), Code::PermissionDenied);
    files.after(|| files.allow("a.example"), "policy", POLICY_RELOADED);
    assert_eq!(block_on(client.caller()).unwrap().as_deref(), Some("a.example"));
}

#[test]
fn unusable_files_are_named_at_start() {
    let root = authority("root");
    let own = issue_pem(&root, "a.example", VALID);
    let other = issue_pem(&root, "a.example", VALID);
    let expired = issue_pem(&root, "a.example", [2020, 2021]);
    for (name, content, text) in [
        ("pem", None, "No such file or directory (os error 2): give the path of a regular file"),
        ("pem", Some("none"), "no section CERTIFICATE in the PEM; `trunkctl keys show`"),
        ("pem", Some(&expired[0][..]), "the private key does not match"),
        ("key", Some("none"), "no section PRIVATE KEY"),
        ("key", Some(&other[1][..]), "expected the node's own certificate first, and its key; `trunkctl"),
        ("roots", Some("none"), "no section CERTIFICATE"),
        ("list", Some("none"), "no section X509 CRL"),
        ("list", None, "No such file"),
        ("policy", None, "No such file"),
        ("policy", Some("[[allow]]"), "line 1: missing field `peers`"),
    ] {
        let files = Files::new(&own, &root.pem());
        match content {
            Some(content) => files.replace(name, content),
            None => drop(fs::remove_file(files.path(name))),
        }
        let mut builder = files.node();
        if name == "list" {
            builder = builder.revocation_files([files.path("list")]);
        }
        let error = builder.start().unwrap_err();
        let is_kind = matches!(error, StartError::BadIdentity(_)) || name == "policy";
        // If key and certificate do not match, the log names the key.
        let named = if text.contains("does not match") { "key" } else { name };
        let path = files.path(named);
        let error = error.to_string();
        assert!(is_kind && error.contains(path.to_str().unwrap()) && error.contains(text), "{error}");
    }
    let files = Files::new(&expired, &root.pem());
    let error = files.node().start().unwrap_err().to_string();
    let path = files.path("pem");
    assert!(error.contains(&format!("{}: its certificate expired on", path.display())), "{error}");
    let error = node().revocation_files([path]).start().unwrap_err();
    assert!(error.to_string().contains("there is none: give the node"), "{error}");
}

#[test]
fn world_readable_key_is_logged() {
    let root = authority("root");
    let files = Files::new(&issue_pem(&root, "a.example", VALID), &root.pem());
    let start = |mode| {
        fs::set_permissions(files.path("key"), PermissionsExt::from_mode(mode)).unwrap();
        drop(files.node().start().unwrap());
        files.logged("key", "run chmod 600 on the file, and replace the key")
    };
    assert_eq!([0o600, 0o640, 0o644].map(start), [0, 0, 1]);
}

#[test]
fn end_of_certificate_is_logged() {
    let (root, log) = (authority("root"), Logged::by_all());
    let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(1970, 1, 1) + now + Duration::from_secs(3 * 86_400 + 1800);
    let key = KeyPair::generate().unwrap();
    let chain = params.signed_by(&key, &root).unwrap().pem();
    let own = trunkline::identity::Identity::from_pem(chain.as_bytes(), key.serialize_pem().as_bytes());
    let _node = node().exempt_local_user(false).identity(own.unwrap()).trust(trust(&root)).start().unwrap();
    let text = "hours_left=72 percent_left=0";
    until("the end is logged", || (log.count(text) == 1).then_some(()));
}

/// Returns the number of threads that watch files.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "trunkline-files").count()
}

#[test]
fn only_nodes_with_credential_or_policy_files_have_watcher_thread() {
    if !runs_alone(module_path!(), "only_nodes_with_credential_or_policy_files_have_watcher_thread") {
        return;
    }
    let root = authority("root");
    let plain = node()
        .exempt_local_user(false)
        .identity(issue(&root, "a.example", VALID))
        .trust(trust(&root))
        .start()
        .unwrap();
    assert_eq!(threads(), 0);
    let files = Files::new(&issue_pem(&root, "a.example", VALID), &root.pem());
    let with_files = files.node().start().unwrap();
    let with_policy = node().policy_file(files.path("policy")).start().unwrap();
    assert_eq!(threads(), 2);
    with_files.shutdown();
    assert_eq!(threads(), 1);
    drop(with_policy);
    assert_eq!(threads(), 0);
    drop(plain);
}
