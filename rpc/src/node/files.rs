//! Reloads certificates, keys, roots, revocation lists and policies while the node runs. A node with such files has one
//! thread that detects changes and reads the changed files. If a file is invalid, the earlier version stays in use.

use crate::identity::{BadIdentity, Identity, IdentityError, Level, Refused, Trust};
use crate::node::fork_lock::Lock;
use crate::node::start_error::StartError;
use crate::server::policy::{MAX_BYTES, PolicyFile, Stamp, open_bounded};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};
use trunkline_machine::{Machine, Running, Runtime, Turn};
use trunkline_transport::NodeOptions;
use trunkline_transport::identity::Credentials;
use trunkline_verbs::{Clock, Time};

/// Time between two checks for changes.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time after which an ending node abandons a thread that is still reading a file.
const ABANDON_AFTER: Duration = Duration::from_secs(3);

/// A value from the program, or the paths of the files that contain it.
#[derive(Debug)]
pub(crate) enum Source<T, P> {
    Given(T),
    Files(P),
}

/// Settings of a node's identity and of the files that it reloads.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Certificates and key.
    pub(crate) identity: Option<Source<Identity, [PathBuf; 2]>>,
    pub(crate) trust: Option<Source<Trust, PathBuf>>,
    pub(crate) revocation_lists: Vec<PathBuf>,
    /// Minimum security level of sessions, if set by the program.
    pub(crate) accept: Option<Level>,
    pub(crate) policy: Option<PathBuf>,
    /// Time between two checks for changes, if set by a test.
    pub(crate) look_every: Option<Duration>,
}

impl Settings {
    /// Reads the files, creates the credentials and passes them to the transport.
    pub(crate) fn apply(self, options: NodeOptions) -> Result<(NodeOptions, Files), StartError> {
        let policy = self.policy.as_ref().map(PolicyFile::open).transpose().map_err(StartError::BadPolicy)?;
        let every = self.look_every.unwrap_or(LOOK_EVERY);
        let (options, credentials) = self.apply_identity(options).map_err(StartError::BadIdentity)?;
        Ok((options, Files { credentials, policy, every }))
    }

    fn apply_identity(
        self,
        options: NodeOptions,
    ) -> Result<(NodeOptions, Option<CredentialFiles>), BadIdentity> {
        let (identity, trust) = match (self.identity, self.trust) {
            (Some(identity), Some(trust)) => (identity, trust),
            (Some(_), None) => return Err(BadIdentity::NoTrust),
            (None, None)
                if self.revocation_lists.is_empty()
                    && self.accept.is_none_or(|lowest| lowest == Level::None) =>
            {
                return Ok((options, None));
            }
            (None, _) => return Err(BadIdentity::NoIdentity),
        };
        let sources = Sources { identity, trust, revocation_lists: self.revocation_lists };
        let (files, credentials) = CredentialFiles::open(sources)?;
        let lowest = self.accept.unwrap_or(Level::Encrypted);
        if lowest == Level::None {
            tracing::warn!(
                cause = "the node is built with accept(Level::None)",
                remedy = "set Level::Encrypted once all peers have an identity",
                "unauthenticated peers accepted, without encryption"
            );
        }
        Ok((options.credentials(Arc::new(credentials)).accept(lowest), files))
    }
}

/// Sources of a node's credentials.
#[derive(Debug)]
struct Sources {
    /// Certificates and key.
    identity: Source<Identity, [PathBuf; 2]>,
    trust: Source<Trust, PathBuf>,
    revocation_lists: Vec<PathBuf>,
}

impl Sources {
    /// Creates credentials from the current files, and checks that they are valid now.
    fn load(&self) -> Result<Credentials, BadIdentity> {
        let identity = match &self.identity {
            Source::Given(identity) => identity.clone(),
            Source::Files([certificates, key]) => {
                let unusable = |cause| {
                    let path = if is_of_key(&cause) { key } else { certificates };
                    in_file(path, BadIdentity::Unusable(cause))
                };
                Identity::from_pem(&read(certificates)?, &read(key)?).map_err(unusable)?
            }
        };
        let trust = match &self.trust {
            Source::Given(trust) => trust.clone(),
            Source::Files(path) => Trust::from_pem(&read(path)?).map_err(unusable_in(path))?,
        };
        let trust = self.with_revocation_lists(trust)?;
        let credentials = Credentials::of_system(&identity, &trust).map_err(BadIdentity::Unusable)?;
        let refused = |cause| match &self.identity {
            Source::Given(_) => cause,
            Source::Files([certificates, _]) => in_file(certificates, cause),
        };
        match credentials.check_own() {
            Ok(_) => {}
            Err(Refused::Expired) => {
                let end = Duration::from_secs(credentials.not_after.as_secs());
                return Err(refused(BadIdentity::Expired(UNIX_EPOCH + end)));
            }
            Err(Refused::NotYetValid) => return Err(refused(BadIdentity::NotYetValid)),
            Err(cause) => {
                tracing::warn!(%cause, "certificate of this node does not verify against its own trust")
            }
        }
        Ok(credentials)
    }

    fn with_revocation_lists(&self, trust: Trust) -> Result<Trust, BadIdentity> {
        let mut all = Vec::new();
        for path in &self.revocation_lists {
            let lists = read(path)?;
            // Each file is parsed separately first, so that an error can name the file.
            trust.clone().with_revocation_lists(&lists).map_err(unusable_in(path))?;
            all.extend(lists);
            all.push(b'\n');
        }
        if all.is_empty() {
            return Ok(trust);
        }
        trust.with_revocation_lists(&all).map_err(BadIdentity::Unusable)
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        let identity = match &self.identity {
            Source::Given(_) => &[][..],
            Source::Files(paths) => paths,
        };
        let trust = match &self.trust {
            Source::Given(_) => None,
            Source::Files(path) => Some(path),
        };
        identity.iter().chain(trust).chain(&self.revocation_lists).map(PathBuf::as_path)
    }

    fn stamps(&self) -> Stamps {
        self.paths().map(Stamp::of).collect()
    }

    /// Logs a warning if other users can read the private key.
    fn warn_of_open_key(&self) {
        let Source::Files([_, key]) = &self.identity else { return };
        if key.metadata().is_ok_and(|file| file.permissions().mode() & 0o004 != 0) {
            let path = key.display();
            tracing::warn!(
                %path,
                remedy = "run chmod 600 on the file, and replace the key",
                "private key readable by all users of this host"
            );
        }
    }
}

/// Returns true if the error is in the key file.
fn is_of_key(cause: &IdentityError) -> bool {
    match cause {
        IdentityError::KeyMismatch | IdentityError::UnsupportedKey => true,
        IdentityError::Pem { part, .. } => part.contains("key"),
        IdentityError::Missing(kind) => kind.contains("KEY"),
        _ => false,
    }
}

fn in_file(path: &Path, cause: BadIdentity) -> BadIdentity {
    BadIdentity::File { path: path.into(), cause: Box::new(cause) }
}

fn unusable_in(path: &Path) -> impl Fn(IdentityError) -> BadIdentity {
    move |cause| in_file(path, BadIdentity::Unusable(cause))
}

fn read(path: &Path) -> Result<Vec<u8>, BadIdentity> {
    let mut bytes = Vec::new();
    let read = open_bounded(path).and_then(|mut file| file.read_to_end(&mut bytes));
    let read = read.and_then(|size| match size <= MAX_BYTES {
        true => Ok(bytes),
        false => Err(io::Error::other(format!("more than {MAX_BYTES} bytes"))),
    });
    read.map_err(|cause| in_file(path, BadIdentity::Unreadable(cause)))
}

/// Versions of files, in the same order as their paths.
type Stamps = Vec<Result<Stamp, io::ErrorKind>>;

/// Files that contain a node's credentials.
#[derive(Debug)]
struct CredentialFiles {
    sources: Sources,
    in_force: Stamps,
    /// Versions at the last check.
    seen: Stamps,
}

impl CredentialFiles {
    /// Reads the credentials. The first value is `None` if there are no files.
    fn open(sources: Sources) -> Result<(Option<Self>, Credentials), BadIdentity> {
        // A file that changes after this line is read again by the next `reload`.
        let seen = sources.stamps();
        let credentials = sources.load()?;
        sources.warn_of_open_key();
        let files = (!seen.is_empty()).then(|| Self { sources, in_force: seen.clone(), seen });
        Ok((files, credentials))
    }

    /// Reads changed files. Returns the new credentials and the names of the changed files.
    fn reload(&mut self) -> Option<(Credentials, String)> {
        let stamps = self.sources.stamps();
        let is_new = stamps != self.seen;
        self.seen = stamps;
        if self.seen == self.in_force {
            return None;
        }
        match self.sources.load() {
            Ok(credentials) => {
                self.sources.warn_of_open_key();
                let pairs = self.seen.iter().zip(&self.in_force);
                let changed =
                    self.sources.paths().zip(pairs).filter(|(_, (seen, in_force))| seen != in_force);
                let changed: Vec<_> = changed.map(|(path, _)| path.display().to_string()).collect();
                self.in_force.clone_from(&self.seen);
                Some((credentials, changed.join(", ")))
            }
            Err(error) => {
                if is_new {
                    tracing::warn!(%error, "identity files not reloaded; earlier ones stay in use");
                }
                None
            }
        }
    }
}

/// Files that a node reloads when they change.
#[derive(Debug, Default)]
pub(crate) struct Files {
    credentials: Option<CredentialFiles>,
    pub(crate) policy: Option<PolicyFile>,
    /// Time between two checks for changes.
    every: Duration,
}

impl Files {
    pub(crate) fn are_none(&self) -> bool {
        self.credentials.is_none() && self.policy.is_none()
    }

    /// Starts the thread that reloads changed files, if there are any files.
    pub(crate) fn watch(
        self,
        node: Weak<trunkline_transport::Node>,
        runtime: &Runtime,
    ) -> Result<Option<FilesThread>, StartError> {
        if self.are_none() || runtime.is_simulated() {
            return Ok(None);
        }
        let (end, ended) = mpsc::channel();
        let clock = runtime.clock().clone();
        let watcher = Watcher { files: self, node, clock: clock.clone(), ended, is_over: false };
        let running =
            runtime.spawn("trunkline-files", Box::new(move || Ok(Box::new(watcher) as Box<dyn Machine>)));
        let running = running.map_err(|cause| StartError::os("start a thread", cause))?;
        Ok(Some(FilesThread { end, clock, running: Lock::new(Some(running)) }))
    }
}

/// State of the thread that reloads changed files. Not used in simulations.
struct Watcher {
    files: Files,
    node: Weak<trunkline_transport::Node>,
    clock: Clock,
    /// Receives a message, or is disconnected, when the node ends.
    ended: Receiver<()>,
    is_over: bool,
}

impl Watcher {
    fn look(&mut self) {
        if let Some(policy) = &self.files.policy {
            policy.reload();
        }
        let Some(files) = &mut self.files.credentials else { return };
        let Some((credentials, changed)) = files.reload() else { return };
        let Some(node) = self.node.upgrade() else { return };
        let hours_left = credentials.expires_in().as_secs() / 3600;
        node.set_credentials(Arc::new(credentials));
        tracing::info!(changed, hours_left, "identity files reloaded; new sessions use them");
    }
}

impl Machine for Watcher {
    fn turn(&mut self) -> Turn {
        if self.is_over {
            return Turn::Done;
        }
        self.look();
        Turn::Sleep(Some(self.clock.now() + self.files.every))
    }

    fn sleep(&mut self, until: Option<Time>) {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(self.clock.now()));
        self.is_over = self.ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
    }

    fn is_woken(&self) -> bool {
        self.is_over
    }
}

/// Handle of the thread that reloads changed files, owned by its node.
#[derive(Debug)]
pub(crate) struct FilesThread {
    end: Sender<()>,
    clock: Clock,
    running: Lock<Option<Running>>,
}

impl FilesThread {
    /// Signals the thread to end.
    pub(crate) fn begin_end(&self) {
        let _has_ended = self.end.send(());
    }

    /// Ends the thread. Abandons it after 3 s if it is still reading a file.
    pub(crate) fn end(&self) {
        self.begin_end();
        let Some(running) = self.running.lock().take() else { return };
        let deadline = self.clock.now() + ABANDON_AFTER;
        let left = || deadline.saturating_duration_since(self.clock.now());
        if let Err(cause) = running.join_within(left) {
            tracing::error!(?cause, "file reload thread panicked or did not end in time");
        }
    }
}
