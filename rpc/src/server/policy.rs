//! Authorization by rules in a file. The rules state which peers may make which calls.
//!
//! A policy contains `[[allow]]` and `[[deny]]` rules, each with patterns for peers and for calls. A call is allowed if an
//! `[[allow]]` rule matches it and no `[[deny]]` rule does. All other calls are denied.
//!
//! ```toml
//! [[allow]]
//! peers = ["spiffe://prod/shop/*", "*.internal.example", "10.1.0.7", "local:1000"]
//! calls = ["/shop.Orders/*", "/shop.Stock/get"]
//! ```
//!
//! Pollers decide once per call, so a decision does not allocate, and visits only rules that match the peer or the call. The
//! rules are numbered, denials first. Each pattern maps to the sorted numbers of its rules. The rule with the first number
//! that is in a list of the peer and in a list of the call decides.

mod file;
#[cfg(test)]
mod tests;

pub use file::{PolicyFile, PolicyFileError};
#[cfg(feature = "identity")]
pub(crate) use file::{Stamp, open_bounded};

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::str::FromStr;
use toml::Spanned;
use trunkline_transport::printable;

/// Maximum length of a policy, and of other files that a node reloads, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// Maximum number of rules.
const MAX_RULES: usize = 10_000;
/// Maximum length of a pattern, in bytes. The longest patterns are the longest SPIFFE URI (SPIFFE-ID §2.3) plus `/*`.
const MAX_PATTERN_BYTES: usize = 2050;

const SPIFFE: &str = "spiffe://";

/// Identity of a peer, which is a proven name, a user of this host, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyPeer<'p> {
    /// Proven SPIFFE URI.
    Spiffe(&'p str),
    /// Proven DNS name in lower case. Its first label may be `*`, which only patterns that begin with `*` match.
    Dns(&'p str),
    /// Proven IP address.
    Ip(IpAddr),
    /// User of this host, identified by UID.
    Local(u32),
    /// Peer without a proven name.
    Unproven,
}

impl fmt::Display for PolicyPeer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spiffe(name) | Self::Dns(name) => f.write_str(name),
            Self::Ip(address) => address.fmt(f),
            Self::Local(uid) => write!(f, "local:{uid}"),
            Self::Unproven => f.write_str("unproven"),
        }
    }
}

/// Pattern that matches peers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerPattern(Peers);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Peers {
    /// SPIFFE URI. If it ends with `/`, any text may follow.
    Spiffe(Box<str>),
    /// DNS name. If it begins with a dot, any first label may precede it.
    Dns(Box<str>),
    Ip(IpAddr),
    /// User of this host; `None` matches any user.
    Local(Option<u32>),
    Unproven,
}

impl PeerPattern {
    /// Returns the peer if the pattern matches exactly one.
    #[must_use]
    pub fn as_peer(&self) -> Option<PolicyPeer<'_>> {
        match &self.0 {
            Peers::Spiffe(name) => (!name.ends_with('/')).then_some(PolicyPeer::Spiffe(name)),
            Peers::Dns(name) => (!name.starts_with('.')).then_some(PolicyPeer::Dns(name)),
            Peers::Ip(address) => Some(PolicyPeer::Ip(*address)),
            Peers::Local(uid) => uid.map(PolicyPeer::Local),
            Peers::Unproven => Some(PolicyPeer::Unproven),
        }
    }

    fn key(&self) -> Key<'_> {
        match &self.0 {
            Peers::Spiffe(name) | Peers::Dns(name) => Key::Name(name),
            Peers::Ip(address) => Key::Ip(*address),
            Peers::Local(uid) => Key::Local(*uid),
            Peers::Unproven => Key::Unproven,
        }
    }
}

impl FromStr for PeerPattern {
    type Err = String;

    /// Parses a pattern.
    ///
    /// # Errors
    /// Returns a text that lists the valid forms of a pattern.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = |expected: &str| Err(format!("invalid peer {text:?}: expected {expected}"));
        if text.len() > MAX_PATTERN_BYTES {
            return Err(format!("a peer has {} bytes: at most {MAX_PATTERN_BYTES} are possible", text.len()));
        }
        Ok(Self(if text == "unproven" {
            Peers::Unproven
        } else if text == "local" {
            Peers::Local(None)
        } else if let Some(uid) = text.strip_prefix("local:") {
            match uid.parse() {
                Ok(uid) => Peers::Local(Some(uid)),
                Err(_) => return invalid("a number of a user after `local:`"),
            }
        } else if let Some(id) = text.strip_prefix(SPIFFE) {
            let name = text.strip_suffix('*').filter(|name| name.ends_with('/')).unwrap_or(text);
            if !is_spiffe_id(id.strip_suffix("/*").unwrap_or(id)) {
                return invalid("spiffe://, a domain in lower case and a path, whose last part may be `*`");
            }
            Peers::Spiffe(name.into())
        } else if let Ok(address) = text.parse() {
            Peers::Ip(address)
        } else {
            let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
            let parent = name.strip_prefix("*.");
            if !is_dns_name(parent.unwrap_or(&name)) {
                return invalid(
                    "a SPIFFE URI, a DNS name, whose first label may be `*`, an IP address, `local`, `local:UID` or \
                     `unproven`",
                );
            }
            Peers::Dns(parent.map_or_else(|| name.as_str().into(), |parent| format!(".{parent}").into()))
        }))
    }
}

/// Returns true if the text is the domain and path of a SPIFFE URI.
fn is_spiffe_id(id: &str) -> bool {
    let is_mark = |byte: u8| matches!(byte, b'.' | b'-' | b'_');
    let (domain, path) = id.split_once('/').map_or((id, None), |(domain, path)| (domain, Some(path)));
    !domain.is_empty()
        && domain.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || is_mark(byte))
        && path.is_none_or(|path| {
            path.split('/').all(|part| {
                !matches!(part, "" | "." | "..")
                    && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
            })
        })
}

fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        matches!(label.len(), 1..=63)
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    name.len() <= 253 && name.split('.').all(is_label) && !name.rsplit('.').next().is_some_and(is_number)
}

impl fmt::Display for PeerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0, self.as_peer()) {
            (_, Some(peer)) => peer.fmt(f),
            (Peers::Spiffe(parent), None) => write!(f, "{parent}*"),
            (Peers::Dns(parent), None) => write!(f, "*{parent}"),
            (_, None) => f.write_str("local"),
        }
    }
}

/// Pattern that matches calls, in the form `/service/method`, `/service/*` or `*`. gRPC calls are matched by their path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallPattern(
    /// The path. If it ends with `/`, the pattern matches all methods of the service. If it is empty, the pattern matches
    /// all calls.
    Box<str>,
);

impl FromStr for CallPattern {
    type Err = String;

    /// Parses a pattern.
    ///
    /// # Errors
    /// Returns a text that lists the valid forms of a pattern.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN_BYTES {
            return Err(format!("a call has {} bytes: at most {MAX_PATTERN_BYTES} are possible", text.len()));
        }
        if text == "*" {
            return Ok(Self("".into()));
        }
        let prefix = text.strip_suffix('*').filter(|prefix| prefix.ends_with('/')).unwrap_or(text);
        let sample = if prefix.len() < text.len() { format!("{prefix}method") } else { text.to_owned() };
        if service_prefix(&sample).is_none() {
            return Err(format!(
                "invalid call {text:?}: expected `/service/method`, `/service/*` or `*`, without spaces, `?`, `#`, `%` and `\\`"
            ));
        }
        Ok(Self(prefix.into()))
    }
}

impl fmt::Display for CallPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = if self.0.is_empty() || self.0.ends_with('/') { "*" } else { "" };
        write!(f, "{}{rest}", self.0)
    }
}

/// Returns the prefix `/service/` of a path `/service/method`, or `None` for a path of another form. Characters that a
/// router could remove or decode are refused, so that a second spelling of a path cannot evade a rule.
fn service_prefix(path: &str) -> Option<&str> {
    let is_name = |name: &str| {
        let is_other = |char: char| char.is_whitespace() || char.is_control() || "/*?#%\\".contains(char);
        !matches!(name, "" | "." | "..") && !name.contains(is_other)
    };
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (is_name(service) && is_name(method)).then(|| &path[..path.len() - method.len()])
}

/// Effect of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The rule refuses matching calls, regardless of other rules.
    Deny,
    /// The rule allows matching calls.
    Allow,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Deny { "deny" } else { "allow" })
    }
}

/// A rule of a policy.
#[derive(Debug)]
pub struct Rule {
    /// Line on which the rule begins.
    pub line: usize,
    /// Effect on matching calls.
    pub effect: Effect,
    /// Patterns for peers, sorted.
    pub peers: Vec<PeerPattern>,
    /// Patterns for calls, sorted.
    pub calls: Vec<CallPattern>,
}

/// Decision about a call.
#[derive(Debug, Clone, Copy)]
pub enum PolicyDecision<'a> {
    /// This rule allows the call.
    Allowed(&'a Rule),
    /// The call is denied.
    Denied(DenialCause<'a>),
}

/// Cause of a denial.
#[derive(Debug, Clone, Copy)]
pub enum DenialCause<'a> {
    /// A rule denies the call.
    Rule(&'a Rule),
    /// No rule allows the call.
    NoRule,
    /// The path of the call does not have the form `/service/method`.
    Path,
}

impl fmt::Display for DenialCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "denied by the rule at line {}", rule.line),
            Self::NoRule => f.write_str("no rule allows it"),
            Self::Path => f.write_str("its path is not of the form /service/method"),
        }
    }
}

/// Error in the text of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct PolicyError {
    line: usize,
    problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyText {
    #[serde(default)]
    allow: Vec<Spanned<RuleText>>,
    #[serde(default)]
    deny: Vec<Spanned<RuleText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    peers: Spanned<Vec<Spanned<String>>>,
    calls: Spanned<Vec<Spanned<String>>>,
}

/// Key for a list of rules, borrowed from a [`PeerPattern`] or a name.
#[derive(Clone, Copy)]
enum Key<'k> {
    Name(&'k str),
    Ip(IpAddr),
    Local(Option<u32>),
    Unproven,
}

/// Sorted numbers of the rules that contain a pattern.
type Numbers = Vec<usize>;

/// Rules that decide which peers may make which calls.
#[derive(Debug, Default)]
pub struct AccessPolicy {
    /// Rules, denials first, and otherwise in the order of the file.
    rules: Vec<Rule>,
    calls: HashMap<Box<str>, Numbers>,
    names: HashMap<Box<str>, Numbers>,
    addresses: HashMap<IpAddr, Numbers>,
    users: HashMap<Option<u32>, Numbers>,
    unproven: Numbers,
}

impl AccessPolicy {
    /// Parses a policy.
    ///
    /// # Errors
    /// Returns an error with the line, the problem and the remedy.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let lines: Vec<_> = text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |at: usize| lines.partition_point(|end| *end < at) + 1;
        let error = |at, problem| PolicyError { line: line(at), problem };
        if text.len() > MAX_BYTES {
            let problem = format!("the policy has {} bytes: at most {MAX_BYTES} are possible", text.len());
            return Err(error(MAX_BYTES, problem));
        }
        let PolicyText { allow, deny } = toml::from_str(text).map_err(|cause| {
            error(cause.span().map_or(0, |span| span.start), printable(&cause.message().replace('\n', ", ")))
        })?;
        if allow.is_empty() {
            let problem = "no [[allow]] rule, so that all calls would be denied: add one";
            return Err(error(text.len(), problem.into()));
        }
        let (denials, count) = (deny.len(), deny.len() + allow.len());
        if count > MAX_RULES {
            let problem = format!("the policy has {count} rules: at most {MAX_RULES} are possible");
            return Err(error(text.len(), problem));
        }
        let (mut policy, mut known) = (Self::default(), BTreeMap::new());
        for (number, rule) in deny.into_iter().chain(allow).enumerate() {
            let (at, rule) = (rule.span().start, rule.into_inner());
            let effect = if number < denials { Effect::Deny } else { Effect::Allow };
            let peers = patterns("peers", rule.peers).map_err(|(at, problem)| error(at, problem))?;
            let calls = patterns("calls", rule.calls).map_err(|(at, problem)| error(at, problem))?;
            let line = line(at);
            if let Some(earlier) = known.insert((effect, peers.clone(), calls.clone()), line) {
                return Err(error(at, format!("a duplicate of the rule at line {earlier}: remove one")));
            }
            policy.add(Rule { line, effect, peers, calls });
        }
        Ok(policy)
    }

    fn add(&mut self, rule: Rule) {
        fn append<K: Eq + Hash>(lists: &mut HashMap<K, Numbers>, key: K, number: usize) {
            lists.entry(key).or_default().push(number);
        }
        let number = self.rules.len();
        for peer in &rule.peers {
            match peer.key() {
                Key::Name(name) => append(&mut self.names, name.into(), number),
                Key::Ip(address) => append(&mut self.addresses, address, number),
                Key::Local(uid) => append(&mut self.users, uid, number),
                Key::Unproven => self.unproven.push(number),
            }
        }
        for call in &rule.calls {
            append(&mut self.calls, call.0.clone(), number);
        }
        self.rules.push(rule);
    }

    /// Returns the rules, denials first, and otherwise in the order of the file.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Decides whether a peer with these names may make a call. A rule applies if it matches any of the names.
    pub fn decide<'p>(
        &self,
        peer: impl IntoIterator<Item = PolicyPeer<'p>>,
        path: &str,
    ) -> PolicyDecision<'_> {
        let Some(service) = service_prefix(path) else { return PolicyDecision::Denied(DenialCause::Path) };
        let calls = self.lists_of_call(path, service);
        let keys = peer.into_iter().map(|name| match name {
            PolicyPeer::Spiffe(name) | PolicyPeer::Dns(name) => Key::Name(name),
            PolicyPeer::Ip(address) => Key::Ip(address),
            PolicyPeer::Local(uid) => Key::Local(Some(uid)),
            PolicyPeer::Unproven => Key::Unproven,
        });
        let lists = keys.flat_map(|key| self.lists_of_peer(key));
        let first = lists.fold(self.rules.len(), |first, rules| {
            calls.iter().fold(first, |first, calls| first_common(rules, calls, first))
        });
        match self.rules.get(first) {
            None => PolicyDecision::Denied(DenialCause::NoRule),
            Some(rule) if rule.effect == Effect::Deny => PolicyDecision::Denied(DenialCause::Rule(rule)),
            Some(rule) => PolicyDecision::Allowed(rule),
        }
    }

    /// Returns the rules that never decide a call, because other rules decide all calls that they match. Each rule is
    /// returned with the lines of these other rules.
    #[must_use]
    pub fn shadowed(&self) -> Vec<(&Rule, BTreeSet<usize>)> {
        // Many patterns of a rule match the same lists of rules, so each combination of lists is searched once.
        let deciding = |number, rule: &Rule| {
            let peers = rule.peers.iter().map(|peer| self.lists_of_peer(peer.key()).collect::<Vec<_>>());
            let calls = rule.calls.iter().map(|call| {
                let service = call.0.rfind('/').map_or("", |end| &call.0[..=end]);
                self.lists_of_call(&call.0, service)
            });
            let (peers, calls): (BTreeSet<_>, BTreeSet<_>) = (peers.collect(), calls.collect());
            let mut lines = BTreeSet::new();
            for (peers, calls) in peers.iter().flat_map(|peers| calls.iter().map(move |calls| (peers, calls)))
            {
                let pairs = peers.iter().flat_map(|peer| calls.iter().map(move |call| (peer, call)));
                let first = pairs.fold(number, |first, (peer, call)| first_common(peer, call, first));
                if first == number {
                    return None;
                }
                lines.insert(self.rules[first].line);
            }
            Some(lines)
        };
        let all = self.rules.iter().enumerate();
        all.filter_map(|(number, rule)| Some((rule, deciding(number, rule)?))).collect()
    }

    fn lists_of_call(&self, path: &str, service: &str) -> [&[usize]; 3] {
        [path, service, ""].map(|key| self.calls.get(key).map_or(&[][..], Vec::as_slice))
    }

    fn lists_of_peer<'a>(&'a self, key: Key<'a>) -> impl Iterator<Item = &'a [usize]> {
        let name = if let Key::Name(name) = key { Some(name) } else { None };
        let names = name.into_iter().flat_map(covering).filter_map(|name| self.names.get(name));
        let other = match key {
            Key::Name(_) => [None; 2],
            Key::Ip(address) => [self.addresses.get(&address), None],
            Key::Local(uid) => [self.users.get(&uid), self.users.get(&None)],
            Key::Unproven => [Some(&self.unproven), None],
        };
        names.chain(other.into_iter().flatten()).map(Vec::as_slice)
    }
}

/// Parses and sorts a list of patterns.
fn patterns<P: FromStr<Err = String> + Ord + fmt::Display>(
    key: &str,
    texts: Spanned<Vec<Spanned<String>>>,
) -> Result<Vec<P>, (usize, String)> {
    let mut found = BTreeSet::new();
    let at = texts.span().start;
    for text in texts.into_inner() {
        let at = text.span().start;
        let pattern: P = text.into_inner().parse().map_err(|problem| (at, problem))?;
        if let Some(twice) = found.replace(pattern) {
            return Err((at, format!("\"{twice}\" is in `{key}` twice: remove one")));
        }
    }
    if found.is_empty() {
        return Err((
            at,
            format!("`{key}` is empty, so the rule matches nothing: add a pattern or remove it"),
        ));
    }
    Ok(found.into_iter().collect())
}

/// Returns the keys of all patterns that match a SPIFFE URI or a DNS name, including the name itself.
fn covering(name: &str) -> impl Iterator<Item = &str> {
    let (id, domain) =
        if name.starts_with(SPIFFE) { (name, None) } else { ("", name.find('.').map(|dot| &name[dot..])) };
    let parents = id.match_indices('/').map(|(at, _)| &id[..=at]);
    std::iter::once(name).chain(parents).chain(domain)
}

/// Returns the first number below `limit` that both lists contain, or `limit` if there is none.
fn first_common(one: &[usize], other: &[usize], limit: usize) -> usize {
    let (few, many) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let mut below = few.iter().copied().take_while(|number| *number < limit);
    below.find(|number| many.binary_search(number).is_ok()).unwrap_or(limit)
}
