//! Decisions, errors and shadowed rules of policies.

use super::*;
use proptest::prelude::*;

const SHOP: &str = r#"
# The shop.
[[allow]]
peers = ["spiffe://prod/shop/*", "*.Internal.example.", "10.1.0.7", "local:1000", "unproven"]
calls = [
    "/shop.Orders/*",
    "/shop.Stock/get",
]

[[deny]]
peers = ["spiffe://prod/shop/guest"]
calls = ["*"]

[[allow]]
peers = ["local"]
calls = ["*"]
"#;

/// Returns the line of the deciding rule, negated for a denial, or 0 if there is no such rule.
fn line(decision: &PolicyDecision<'_>) -> isize {
    match *decision {
        PolicyDecision::Allowed(rule) => rule.line.cast_signed(),
        PolicyDecision::Denied(DenialCause::Rule(rule)) => -rule.line.cast_signed(),
        PolicyDecision::Denied(_) => 0,
    }
}

#[test]
fn names_and_paths_are_matched_whole_or_by_wildcard() {
    use PolicyPeer::{Dns, Ip, Local, Spiffe, Unproven};
    let policy = AccessPolicy::parse(SHOP).unwrap();
    let (order, get, put) = ("/shop.Orders/new", "/shop.Stock/get", "/shop.Stock/put");
    for (peer, path, expected) in [
        (Spiffe("spiffe://prod/shop/a"), order, 3),
        (Spiffe("spiffe://prod/shop/a/b"), get, 3),
        (Spiffe("spiffe://prod/shop/a"), put, 0),
        (Spiffe("spiffe://prod/shop"), order, 0),
        (Spiffe("spiffe://prod/shopping"), order, 0),
        (Spiffe("spiffe://prod/shop/guest"), order, -10),
        (Spiffe("spiffe://prod/shop/guest/a"), order, 3),
        (Dns("a.internal.example"), order, 3),
        (Dns("*.internal.example"), order, 3),
        (Dns("a.b.internal.example"), order, 0),
        (Dns("internal.example"), order, 0),
        (Dns("local"), order, 0),
        (Dns("unproven"), order, 0),
        (Ip([10, 1, 0, 7].into()), get, 3),
        (Ip([10, 1, 0, 8].into()), get, 0),
        (Local(1000), get, 3),
        (Local(1000), put, 14),
        (Local(0), get, 14),
        (Unproven, get, 3),
        (Unproven, "/shop.Stock/get/", 0),
        (Local(0), "/shop.Stock//get", 0),
        (Local(0), "/shop.Stock/get?", 0),
        (Local(0), "*", 0),
    ] {
        assert_eq!(line(&policy.decide([peer], path)), expected, "{peer} {path}");
    }
    let names = [Dns("a.internal.example"), Spiffe("spiffe://prod/shop/guest")];
    assert_eq!(line(&policy.decide(names, order)), -10, "one name is enough for a denial");
    assert_eq!(line(&policy.decide([Dns("other"), names[0]], order)), 3, "and for a permission");
    assert_eq!(line(&policy.decide([], order)), 0);
}

#[test]
fn errors_name_line_and_remedy() {
    let rule =
        |peers: &str, calls: &str| format!("# A comment.\n[[allow]]\npeers = {peers}\ncalls = {calls}\n");
    let peer = |peer: &str| rule(&format!("[\n\"{peer}\"]"), r#"["*"]"#);
    let call = |call: &str| rule(r#"["local"]"#, &format!("[\"{call}\"]"));
    let expected_peer =
        "expected a SPIFFE URI, a DNS name, whose first label may be `*`, an IP address, `local`, ";
    for (text, expected) in [
        (String::new(), "line 1: no [[allow]] rule, so that all calls would be denied: add one"),
        ("[[allow]]\npeers = [\"a\"]".into(), "line 1: missing field `calls`"),
        ("\n\n[[allows]]".into(), "line 3: unknown field `allows`, expected `allow` or `deny`"),
        (rule("[\"a\"]\npeer = 1", "[]"), "line 4: unknown field `peer`, expected `peers` or `calls`"),
        (rule("[\"a\"]\n\"\\u001b\\u202e\" = 1", "[]"), "line 4: unknown field `\\u{1b}\\u{202e}`, expected"),
        (rule("[\"a\"", "[]"), "line 4: "),
        (rule("1", "[]"), "line 3: invalid type: integer `1`, expected a sequence"),
        (
            rule("[]", "[\"*\"]"),
            "line 3: `peers` is empty, so the rule matches nothing: add a pattern or remove it",
        ),
        (rule("[\"a\"]", "[]"), "line 4: `calls` is empty"),
        (rule("[\"a\", \"A.\"]", "[]"), "line 3: \"a\" is in `peers` twice: remove one"),
        (peer("*"), &format!("line 4: invalid peer \"*\": {expected_peer}")),
        (peer("*.*.a"), expected_peer),
        (peer("a.*"), expected_peer),
        (peer("*a.b"), expected_peer),
        (peer("*."), expected_peer),
        (peer(""), expected_peer),
        (peer("10.1.0"), expected_peer),
        (peer("10.1.0.0/16"), expected_peer),
        (peer("-a.b"), expected_peer),
        (peer("user:1"), expected_peer),
        (peer("SPIFFE://prod/a"), expected_peer),
        (
            peer("local:root"),
            "line 4: invalid peer \"local:root\": expected a number of a user after `local:`",
        ),
        (peer("spiffe://*"), "whose last part may be `*`"),
        (peer("spiffe://prod/a*"), "whose last part may be `*`"),
        (peer("spiffe://prod/*/a"), "whose last part may be `*`"),
        (peer("spiffe://prod/a//*"), "whose last part may be `*`"),
        (peer("spiffe://Prod/a"), "whose last part may be `*`"),
        (peer("spiffe://prod/"), "whose last part may be `*`"),
        (call("a.B/c"), "line 4: invalid call \"a.B/c\": expected `/service/method`, `/service/*` or `*`"),
        (call("/a.B"), "expected `/service/method`"),
        (call("/a.B/c*"), "expected `/service/method`"),
        (call("/*/c"), "expected `/service/method`"),
        (call("/*/*"), "expected `/service/method`"),
        (call("//*"), "expected `/service/method`"),
        (call("/a/b/*"), "expected `/service/method`"),
        (call("/a b/c"), "expected `/service/method`"),
        (call("/a/.."), "expected `/service/method`"),
        (call(&"a".repeat(2051)), "line 4: a call has 2051 bytes: at most 2050 are possible"),
        (peer(&"a".repeat(2051)), "line 4: a peer has 2051 bytes"),
        (call("*") + &call("*"), "line 6: a duplicate of the rule at line 2: remove one"),
        ("#".repeat(MAX_BYTES + 1), "the policy has 1048577 bytes: at most 1048576 are possible"),
    ] {
        let error = AccessPolicy::parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let rules = |count: u16| {
        let rule = |uid| format!("[[allow]]\npeers=['local:{uid}']\ncalls=['*']\n");
        AccessPolicy::parse(&(0..count).map(rule).collect::<String>())
    };
    assert_eq!(rules(10_000).unwrap().rules().len(), MAX_RULES);
    assert!(rules(10_001).unwrap_err().to_string().contains("10001 rules: at most 10000 are possible"));
}

#[test]
fn shadowed_rules_are_found() {
    let rule = |effect: &str, peers: &str, calls: &str| {
        format!("[[{effect}]]\npeers = [{peers}]\ncalls = [{calls}]\n")
    };
    let text = rule("allow", "'spiffe://a/b/*', 'local:1'", "'/s/m', '/s/*'")
        + &rule("deny", "'spiffe://a/*'", "'/s/*'")
        + &rule("deny", "'local'", "'*'")
        + &rule("allow", "'spiffe://a/b'", "'*'")
        + &rule("allow", "'*.a', 'a'", "'/s/*'")
        + &rule("allow", "'b.a'", "'/s/m'")
        + &rule("allow", "'b.a', 'b.b'", "'/s/m'")
        + &rule("deny", "'local:7'", "'/s/m'");
    let policy = AccessPolicy::parse(&text).unwrap();
    let found = policy.shadowed().into_iter().map(|(rule, by)| (rule.line, by.into_iter().collect()));
    assert_eq!(found.collect::<Vec<(_, Vec<_>)>>(), [(22, vec![7]), (1, vec![4, 7]), (16, vec![13])]);
}

/// A rule: true if it is a denial, its peers, and its calls.
type Written = (bool, BTreeSet<String>, BTreeSet<String>);

fn written(rules: &[Written]) -> String {
    let rule = |(deny, peers, calls): &Written| {
        format!("[[{}]]\npeers = {peers:?}\ncalls = {calls:?}\n", if *deny { "deny" } else { "allow" })
            .replace('{', "[")
            .replace('}', "]")
    };
    rules.iter().map(rule).collect()
}

/// Decides rule by rule, by comparing the text of patterns.
fn oracle(rules: &[Written], peers: &[&str], path: &str) -> isize {
    let is_peer = |pattern: &str, peer: &str| match (pattern.strip_suffix("/*"), pattern.strip_prefix("*.")) {
        (Some(parent), _) => peer.strip_prefix(parent).is_some_and(|rest| rest.starts_with('/')),
        (_, Some(parent)) => peer.split_once('.').is_some_and(|(_, rest)| rest == parent),
        _ => pattern == peer || (pattern == "local" && peer.starts_with("local:")),
    };
    let parts: Vec<_> = path.split('/').collect();
    let is_path = matches!(parts[..], ["", "s" | "t" | "s.t", "m" | "n"]);
    let is_call = |pattern: &str| {
        pattern == "*" || pattern == path || pattern.strip_suffix('*') == Some(&format!("/{}/", parts[1]))
    };
    let is_match = |(_, patterns, calls): &Written| {
        patterns.iter().any(|pattern| peers.iter().any(|peer| is_peer(pattern, peer)))
            && calls.iter().any(|pattern| is_call(pattern))
    };
    let first = |deny| rules.iter().position(|rule| rule.0 == deny && is_path && is_match(rule));
    let line = |at: usize| (3 * at + 1).cast_signed();
    first(true).map(|at| -line(at)).or_else(|| first(false).map(line)).unwrap_or(0)
}

const PEERS: [&str; 16] = [
    "spiffe://a",
    "spiffe://a/x",
    "spiffe://a/xx",
    "spiffe://a/x/y",
    "spiffe://ax/x",
    "spiffe://b/x",
    "a",
    "b.a",
    "c.a",
    "c.b.a",
    "10.0.0.1",
    "::1",
    "local:1",
    "local:2",
    "unproven",
    "a.c",
];
const WILD: [&str; 8] =
    ["spiffe://a/*", "spiffe://a/x/*", "spiffe://ax/*", "*.a", "*.b.a", "*.c", "local", "local:1"];
const CALLS: [&str; 8] = ["/s/m", "/s/n", "/t/m", "/s.t/n", "/s/*", "/t/*", "/s.t/*", "*"];
const PATHS: [&str; 11] =
    ["/s/m", "/s/n", "/t/m", "/t/n", "/s.t/m", "/s.t/n", "/s/", "//m", "/s/m/n", "/s/*", "s/m"];

fn rules() -> impl Strategy<Value = Vec<Written>> {
    let some = |all: Vec<&'static str>| {
        proptest::collection::btree_set(proptest::sample::select(all).prop_map(str::to_owned), 1..4)
    };
    let rule = (any::<bool>(), some([&PEERS[..], &WILD].concat()), some(CALLS.to_vec()));
    proptest::collection::btree_set(rule, 1..12)
        .prop_map(|rules| rules.into_iter().collect())
        .prop_filter("a rule allows", |rules: &Vec<Written>| rules.iter().any(|rule| !rule.0))
        .prop_shuffle()
}

proptest! {
    #[test]
    fn decisions_match_search_through_all_rules(rules in rules()) {
        let policy = AccessPolicy::parse(&written(&rules)).unwrap();
        let shadowed: Vec<_> = policy.shadowed().iter().map(|(rule, _)| rule.line.cast_signed()).collect();
        let certified = [&PEERS[..], &["*.a"]].concat();
        let patterns: Vec<PeerPattern> = certified.iter().map(|peer| peer.parse().unwrap()).collect();
        let peer = |at: usize| patterns[at].as_peer().unwrap_or(PolicyPeer::Dns("*.a"));
        for path in PATHS {
            for one in 0..certified.len() {
                let other = (one * 7 + 3) % certified.len();
                let decision = line(&policy.decide([peer(one), peer(other)], path));
                let names = [certified[one], certified[other]];
                prop_assert_eq!(decision, oracle(&rules, &names, path), "{:?} {}", names, path);
                prop_assert!(!shadowed.contains(&decision.abs()), "{} is shadowed", decision);
            }
        }
    }
}
