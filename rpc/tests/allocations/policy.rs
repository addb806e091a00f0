//! Allocations by authorization decisions.

use crate::HEAP;
use trunkline::policy::{AccessPolicy, PolicyDecision, PolicyPeer};

pub(crate) fn decisions_do_not_allocate() {
    let rule = |number| {
        let peers =
            format!("'spiffe://prod/shop/{number}', 'spiffe://prod/*', 'local:{number}', '*.example'");
        format!("[[allow]]\npeers = [{peers}]\ncalls = ['/shop.Orders{number}/*', '/shop.Stock/get']\n")
    };
    let policy = AccessPolicy::parse(&(0..1000).map(rule).collect::<String>()).unwrap();
    let names = [PolicyPeer::Dns("a.example"), PolicyPeer::Spiffe("spiffe://prod/shop/7")];
    for (path, expected) in
        [("/shop.Orders900/new", true), ("/shop.Stock/get", true), ("/shop.Stock/put", false)]
    {
        let before = HEAP.allocations();
        let decision = policy.decide(names, path);
        assert_eq!(HEAP.allocations(), before, "{path}");
        assert_eq!(matches!(decision, PolicyDecision::Allowed(_)), expected, "{path}");
    }
}
