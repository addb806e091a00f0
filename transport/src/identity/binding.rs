//! The binding, which is a list of the session's parameters as each side observed them, sent in the handshake.
//!
//! The lists of both sides are equal except for the sender's settings, so a receiver compares each entry with its
//! own. The first difference names the field that was changed in transit. All bytes come from a peer, so this code
//! must not panic.
#![forbid(unsafe_code)]

use super::failure::{CONNECTIONS, Field, OF_SIDE, PREVIOUS, SETTINGS, SIDES, VERSION};
use crate::provider::connections::ConnectionKind;
use crate::session::private_data::{SessionName, Versions};
use crate::wire::settings::{CRITICAL, push_entry, split_entry};
use std::num::NonZeroU16;
use trunkline_verbs::{Gid, QpNumber, SrqNumber};

/// One node's view of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) version: u8,
    pub(crate) connections: ConnectionKind,
    /// In a renewal, the value derived from the previous exchange.
    pub(crate) previous: Option<[u8; 32]>,
    /// The TLS client's side, then the TLS server's.
    pub(crate) sides: [Side; 2],
    /// This node's settings, as carried in its SETTINGS frame.
    pub(crate) settings: Vec<u8>,
}

/// One side's part in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) versions: Versions,
    /// Features of the side's REQ and of its REP.
    pub(crate) features: [u8; 2],
    pub(crate) listener_port: NonZeroU16,
    pub(crate) session: SessionName,
    pub(crate) pollers: u16,
    /// UDP port, as carried in the REQ.
    pub(crate) udp_port: u16,
    /// SRQ numbers in the REP, by poller.
    pub(crate) srqs: Vec<SrqNumber>,
    /// QP number of poller 0's INI.
    pub(crate) ini: QpNumber,
    /// QP number of the TGT that the other side's poller 0 sends to.
    pub(crate) tgt: QpNumber,
    /// GID, as carried in the REQ.
    pub(crate) gid: Gid,
}

impl Binding {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        push_entry(&mut out, VERSION, &[self.version]);
        push_entry(&mut out, CONNECTIONS, &[self.connections.code()]);
        if let Some(previous) = &self.previous {
            push_entry(&mut out, PREVIOUS, previous);
        }
        push_entry(&mut out, SETTINGS, &self.settings);
        for (side, upper) in self.sides.iter().zip(SIDES) {
            let srqs = side.srqs.iter().flat_map(|srq| srq.get().to_le_bytes()).collect::<Vec<_>>();
            let values: [&[u8]; OF_SIDE.len()] = [
                &[side.versions.highest, side.versions.lowest],
                &side.features,
                &side.listener_port.get().to_le_bytes(),
                &side.session.epoch.to_le_bytes(),
                &side.session.number.to_le_bytes(),
                &side.pollers.to_le_bytes(),
                &side.udp_port.to_le_bytes(),
                &srqs,
                &side.ini.get().to_le_bytes(),
                &side.tgt.get().to_le_bytes(),
                &side.gid.0,
            ];
            for (id, value) in (upper + 1..).zip(values) {
                push_entry(&mut out, id, value);
            }
        }
        out
    }

    /// Compares the peer's list with this node's, and returns the peer's settings. Unknown entries are skipped unless
    /// they are critical.
    ///
    /// # Errors
    /// Returns the first entry that differs, is missing, or occurs twice.
    pub(crate) fn compare<'a>(&self, theirs: &'a [u8]) -> Result<&'a [u8], Field> {
        let ours = self.emit();
        let (mut ours, mut theirs) = (&ours[..], theirs);
        let (mut last, mut settings) = (None, &[][..]);
        while let Some((id, value, rest)) = split_entry(theirs) {
            theirs = rest;
            if last.replace(id).is_some_and(|last| last >= id) {
                return Err(Field(id));
            }
            match split_entry(ours) {
                Some((next, ..)) if next < id => return Err(Field(next)),
                Some((next, expected, rest)) if next == id => {
                    ours = rest;
                    if id == SETTINGS {
                        settings = value;
                    } else if value != expected {
                        return Err(Field(id));
                    }
                }
                _ if id & CRITICAL != 0 || Field(id).name().is_some() => return Err(Field(id)),
                _ => {}
            }
        }
        match split_entry(ours) {
            Some((missing, ..)) => Err(Field(missing)),
            None if theirs.is_empty() => Ok(settings),
            None => Err(Field(0)),
        }
    }
}

/// Returns a binding whose values are all different, for tests and fuzzers.
pub(crate) fn example() -> Binding {
    let side = |n: u8| Side {
        versions: Versions { lowest: n, highest: n + 1 },
        features: [n + 2, n + 3],
        listener_port: NonZeroU16::MIN.saturating_add(n.into()),
        session: SessionName { epoch: u64::from(n) << 56 | 5, number: u32::from(n) + 6 },
        pollers: u16::from(n) + 7,
        udp_port: u16::from(n) + 8,
        srqs: vec![SrqNumber::new(u32::from(n) + 9), SrqNumber::new(u32::from(n) + 10)],
        ini: QpNumber::new(u32::from(n) + 11),
        tgt: QpNumber::new(u32::from(n) + 12),
        gid: Gid([n + 13; 16]),
    };
    let settings = vec![1, 0, 1, 0, 9];
    Binding {
        version: 5,
        connections: ConnectionKind::Xrc,
        previous: None,
        sides: [side(20), side(40)],
        settings,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::path::Path;

    /// Changes one value of a binding, or of the side with this index.
    type Change = fn(&mut Binding, usize);

    #[test]
    fn equal_views_match_with_different_settings() {
        let ours = example();
        let theirs = Binding { settings: vec![2, 0, 0, 0], ..example() };
        assert_eq!(ours.compare(&theirs.emit()), Ok(&[2, 0, 0, 0][..]));
        let renewal = Binding { previous: Some([7; 32]), ..example() };
        assert_eq!(renewal.compare(&renewal.emit()), Ok(&ours.settings[..]));
        let start =
            [1, 0, 1, 0, 5, 2, 0, 1, 0, 1, 0x10, 0, 5, 0, 1, 0, 1, 0, 9, 1, 1, 2, 0, 21, 20, 2, 1, 2, 0];
        assert!(ours.emit().starts_with(&start), "{:?}", ours.emit());
    }

    /// Returns bindings that differ from the example in one value, with the name of the field.
    pub(in crate::identity) fn different() -> Vec<(String, Binding)> {
        let of_session: [(&str, Change); 3] = [
            ("version", |binding, _| binding.version = 6),
            ("connections", |binding, _| binding.connections = ConnectionKind::Rc),
            ("previous", |binding, _| binding.previous = Some([7; 32])),
        ];
        let of_side: [(&str, Change); 14] = [
            ("versions", |binding, n| binding.sides[n].versions.lowest = 1),
            ("versions", |binding, n| binding.sides[n].versions.highest = 1),
            ("features", |binding, n| binding.sides[n].features[0] = 1),
            ("features", |binding, n| binding.sides[n].features[1] = 1),
            ("listener port", |binding, n| binding.sides[n].listener_port = NonZeroU16::MAX),
            ("epoch", |binding, n| binding.sides[n].session.epoch ^= 1 << 63),
            ("session number", |binding, n| binding.sides[n].session.number += 1),
            ("pollers", |binding, n| binding.sides[n].pollers += 1),
            ("UDP port", |binding, n| binding.sides[n].udp_port += 1),
            ("SRQ numbers", |binding, n| binding.sides[n].srqs.truncate(1)),
            ("SRQ numbers", |binding, n| binding.sides[n].srqs.swap(0, 1)),
            ("INI", |binding, n| binding.sides[n].ini = QpNumber::new(1)),
            ("TGT", |binding, n| binding.sides[n].tgt = QpNumber::new(1)),
            ("GID", |binding, n| binding.sides[n].gid.0[15] = 1),
        ];
        let of_session = of_session.map(|(name, change)| (name.to_owned(), change, 0));
        let sides = [(0, "client"), (1, "server")];
        let of_sides = sides.into_iter().flat_map(|(n, side)| {
            of_side.iter().map(move |&(name, change)| (format!("{name} of the TLS {side}"), change, n))
        });
        let changes = of_session.into_iter().chain(of_sides);
        changes
            .map(|(name, change, n)| {
                let mut binding = example();
                change(&mut binding, n);
                (name, binding)
            })
            .collect()
    }

    #[test]
    fn each_difference_has_name_of_its_field() {
        for (name, theirs) in different() {
            let ours = example();
            assert_eq!(ours.compare(&theirs.emit()).unwrap_err().to_string(), name);
            assert_eq!(theirs.compare(&ours.emit()).unwrap_err().to_string(), name);
        }
    }

    #[test]
    fn missing_duplicate_and_unknown_critical_entries_are_differences() {
        let ours = example();
        let entries = |list: &[(u16, Vec<u8>)]| {
            let mut out = Vec::new();
            list.iter().for_each(|(id, value)| push_entry(&mut out, *id, value));
            out
        };
        let bytes = ours.emit();
        let mut list = Vec::new();
        let mut rest = &bytes[..];
        while let Some((id, value, after)) = split_entry(rest) {
            list.push((id, value.to_vec()));
            rest = after;
        }
        assert_eq!((list.len(), entries(&list)), (25, bytes.clone()));
        for at in 0..list.len() {
            let field = Field(list[at].0);
            let (mut without, mut twice) = (list.clone(), list.clone());
            without.remove(at);
            assert_eq!(ours.compare(&entries(&without)), Err(field), "without {field}");
            twice.insert(at, list[at].clone());
            assert_eq!(ours.compare(&entries(&twice)), Err(field), "{field} twice");
        }
        for (id, is_skipped) in
            [(0, true), (0x20, true), (0x10c, true), (0x7fff, true), (0x8001, false), (0xffff, false)]
        {
            let mut with = list.clone();
            with.insert(list.iter().filter(|entry| entry.0 < id).count(), (id, vec![1, 2, 3]));
            let expected = if is_skipped { Ok(&ours.settings[..]) } else { Err(Field(id)) };
            assert_eq!(ours.compare(&entries(&with)), expected, "{id:#x}");
        }
        assert_eq!(Field(0x8001).to_string(), "entry 0x8001");
        for later in [0x20, 0x1f] {
            let mut with = list.clone();
            with.splice(3..3, [(0x20, vec![]), (later, vec![])]);
            let expected = Err(Field(later));
            assert_eq!(ours.compare(&entries(&with)), expected, "{later:#x} after 0x20");
        }
        list.swap(4, 5);
        assert!(ours.compare(&entries(&list)).is_err(), "out of order");
        for cut in 0..bytes.len() {
            assert!(ours.compare(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        let error = ours.compare(&[&bytes[..], &[0]].concat()).unwrap_err();
        assert_eq!(error.to_string(), "end of the list");
    }

    /// The table in `docs/book/src/why/security.md` lists the ids and names of this file.
    #[test]
    fn fields_have_names_of_document() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src/why/security.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut count = 0;
        for row in page.lines().filter_map(|line| line.strip_prefix("| 0x0")) {
            let [id, name, ..] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
            for (n, side) in [("1", " of the TLS client"), ("2", " of the TLS server")] {
                let number = u16::from_str_radix(&id.replace("*n*", n), 16).unwrap();
                let side = if id.contains("*n*") { side } else { "" };
                assert_eq!(Field(number).to_string(), format!("{name}{side}"), "{row}");
            }
            count += 1;
        }
        assert_eq!(count, 4 + OF_SIDE.len());
    }
}
