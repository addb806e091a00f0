//! Attribution of instructions to layers.
//!
//! An instruction belongs to the layer that contains its source file, even if it is inlined elsewhere. Code from the
//! standard library, from other crates and from the crates used by all layers (`transport/verbs`, `transport/machine`)
//! belongs to the layer of the function into which it is inlined. If it is not inlined, its cost is divided among the
//! callers of its function, in proportion to the cost of their calls.

use crate::callgrind::{Function, Profile};

/// A layer on the path of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// Stubs, serde and bincode: encoding and decoding of arguments.
    Codec,
    /// Calls, deadlines, statuses and the executor.
    Rpc,
    /// Pollers, trunks, credit and buffers.
    Transport,
    /// The software device, its link and the protocol.
    Device,
    /// The measured program, and the code that steps the nodes. Neither is on the path of a call.
    Program,
}

/// Instructions per layer, in the order of [`Layer`].
pub(crate) type ByLayer = [f64; 5];

/// Layers of files in the workspace, by a part of the path. The first match applies. Preceding parts of the path are
/// ignored, because a crate may be compiled at another location.
const FILES: &[(&str, Layer)] = &[
    ("/rpc/src/codec/", Layer::Codec),
    ("/rpc/src/stub.rs", Layer::Codec),
    ("/counts/src/steps/echo.rs", Layer::Codec),
    ("/rpc/src/", Layer::Rpc),
    ("/transport/softrdma/src/", Layer::Device),
    ("/transport/roce/src/", Layer::Device),
    ("/transport/src/", Layer::Transport),
    ("/counts/src/", Layer::Program),
    ("/transport/testkit/src/", Layer::Program),
];

/// Parts of the paths of third-party crates and of the standard library.
const OTHERS: &[&str] = &["/registry/src/", "/rustc/"];

/// Third-party crates that belong to a layer, by the part of the folder name before the version.
const CRATES: &[(&str, Layer)] =
    &[("serde", Layer::Codec), ("serde_core", Layer::Codec), ("bincode", Layer::Codec)];

/// Maximum number of rounds. It is reached only if functions call each other in cycles.
const ROUNDS: usize = 200;

/// Returns the layer of a file, or `None` if its code is attributed to its callers.
fn layer_of(file: &str) -> Option<Layer> {
    if !OTHERS.iter().any(|part| file.contains(part)) {
        return FILES.iter().find(|(part, _)| file.contains(part)).map(|(_, layer)| *layer);
    }
    let of_crate = |folder: &str| {
        let (name, version) = folder.rsplit_once('-')?;
        let known = CRATES.iter().find(|(known, _)| *known == name)?;
        version.starts_with(|first: char| first.is_ascii_digit()).then_some(known.1)
    };
    file.split('/').find_map(of_crate)
}

/// Returns the instructions in a profile, by layer.
pub(crate) fn by_layer(profile: &Profile) -> ByLayer {
    let functions = &profile.functions;
    let layers = functions.iter().map(|function| layer_of(&function.file)).collect::<Vec<_>>();
    let shares = shares(functions, &layers);
    let mut sum = ByLayer::default();
    for (function, shares) in functions.iter().zip(&shares) {
        for (file, instructions) in &function.own {
            let instructions = approximate(*instructions);
            match layer_of(file) {
                Some(layer) => sum[layer as usize] += instructions,
                None => add(&mut sum, shares, instructions),
            }
        }
    }
    sum
}

/// Returns the shares of each function by layer. If the function belongs to a layer, the layer has the whole share.
/// Otherwise the function has the shares of its callers, weighted by the cost of their calls. Shares without a caller
/// belong to the program.
fn shares(functions: &[Function], layers: &[Option<Layer>]) -> Vec<ByLayer> {
    let mut shares = vec![ByLayer::default(); functions.len()];
    for (share, layer) in shares.iter_mut().zip(layers) {
        if let Some(layer) = layer {
            share[*layer as usize] = 1.0;
        }
    }
    for _ in 0..ROUNDS {
        let before = shares.clone();
        for (at, function) in functions.iter().enumerate().filter(|(at, _)| layers[*at].is_none()) {
            let callers = function.callers.iter().filter(|(caller, _)| **caller != at);
            let all = callers.clone().map(|(_, cost)| approximate(*cost)).sum::<f64>();
            shares[at] = ByLayer::default();
            for (caller, cost) in callers {
                if all > 0.0 {
                    let part = before[*caller];
                    add(&mut shares[at], &part, approximate(*cost) / all);
                }
            }
        }
        if before == shares {
            break;
        }
    }
    for share in &mut shares {
        share[Layer::Program as usize] += (1.0 - share.iter().sum::<f64>()).max(0.0);
    }
    shares
}

fn add(sum: &mut ByLayer, part: &ByLayer, times: f64) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum += part * times;
    }
}

/// Converts a count to `f64`. The conversion is exact below 2^53, and counts are far smaller.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn approximate(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_files_are_assigned_to_layers() {
        for (file, expected) in [
            ("/tree/rpc/src/codec/mod.rs", Some(Layer::Codec)),
            ("/tree/rpc/src/client/calls.rs", Some(Layer::Rpc)),
            ("/tree/transport/src/trunk/mod.rs", Some(Layer::Transport)),
            ("/tree/transport/softrdma/src/link/mod.rs", Some(Layer::Device)),
            ("/tree/transport/roce/src/engine/mod.rs", Some(Layer::Device)),
            ("/tree/transport/verbs/src/time.rs", None),
            ("/tree/transport/machine/src/rings/spsc.rs", None),
            ("/tree/counts/src/steps/echo.rs", Some(Layer::Codec)),
            ("/tree/counts/src/steps/program.rs", Some(Layer::Program)),
            ("/x/registry/src/index/serde_core-1.0.228/src/de/mod.rs", Some(Layer::Codec)),
            ("/x/registry/src/index/bincode-2.0.1/src/lib.rs", Some(Layer::Codec)),
            ("/x/registry/src/index/bytes-1.12.0/src/bytes.rs", None),
            ("/elsewhere/registry/src/index/rpc-1.0.0/rpc/src/call.rs", None),
            ("/rustc/1234/library/core/src/option.rs", None),
            ("", None),
        ] {
            assert_eq!(layer_of(file), expected, "{file}");
        }
    }

    /// A profile in which the device calls `memcpy` at a cost of 30, and the rpc layer calls it through a function of the
    /// standard library at a cost of 10. The caller of `lost` is unknown.
    const SHARED: &str = "\
events: Ir
fl=(1) /tree/transport/softrdma/src/a.rs
fn=(1) device
1 100
fi=(2) /rustc/1/library/core/src/option.rs
1 11
fe=(1)
cfi=(3) memcpy.S
cfn=(3) memcpy
calls=1 1
1 30

fl=(4) /tree/rpc/src/b.rs
fn=(4) rpc
1 50
cfi=(2)
cfn=(5) extend
calls=1 1
1 12

fl=(2)
fn=(5)
1 2
cfi=(3)
cfn=(3)
calls=1 1
1 10
cfn=(5)
calls=1 1
1 3

fl=(3)
fn=(3)
1 40

fl=(6) ???
fn=(6) lost
1 5
";

    #[test]
    fn shared_functions_count_for_layer_of_caller() {
        let profile = Profile::parse(SHARED).unwrap();
        let [codec, rpc, transport, device, program] = by_layer(&profile);
        assert_eq!((codec, transport), (0.0, 0.0));
        assert!((device - (100.0 + 11.0 + 30.0)).abs() < 1e-6, "{device}");
        assert!((rpc - (50.0 + 2.0 + 10.0)).abs() < 1e-6, "{rpc}");
        assert!((program - 5.0).abs() < 1e-6, "{program}");
    }
}
