//! Compares the shapes of a method's types on both sides of a call, because a codec without names could decode one type as
//! another.
//!
//! A caller that identifies a method by hash sends a fingerprint of each type. The server compares the fingerprints before
//! it decodes the arguments. If they differ, the server refuses the call with its own shape, so that the caller can report
//! the first difference. After the server has assigned a number to the method, calls in the session are no longer compared.

use super::type_shape::{Fnv, TypeShape};
use std::ptr;
use std::sync::OnceLock;

/// Positions of fingerprints. The fingerprints of the arguments follow.
const RESULT: usize = 0;
const ERROR: usize = 1;
const ITEMS: usize = 2;
const ARGUMENTS: usize = 3;

/// The shapes of a method's types. They are traced on first use.
pub struct MethodShapes {
    list: fn(&mut ShapeList),
    traced: OnceLock<Traced>,
}

/// The shapes of a method's types; `None` for types that are not compared.
#[derive(Debug, Default)]
pub struct ShapeList {
    result: Option<TypeShape>,
    error: Option<TypeShape>,
    items: Option<TypeShape>,
    arguments: Vec<(&'static str, Option<TypeShape>)>,
}

impl ShapeList {
    /// Adds the next argument.
    pub fn argument(&mut self, name: &'static str, shape: Option<TypeShape>) {
        self.arguments.push((name, shape));
    }

    /// Sets the shape of the items that the client streams.
    pub fn items(&mut self, shape: Option<TypeShape>) {
        self.items = shape;
    }

    /// Sets the shape of the result, or of the items that the server streams.
    pub fn result(&mut self, shape: Option<TypeShape>) {
        self.result = shape;
    }

    /// Sets the shape of the method's own error.
    pub fn error(&mut self, shape: Option<TypeShape>) {
        self.error = shape;
    }

    fn at(&self, position: usize) -> Option<&TypeShape> {
        match position {
            RESULT => self.result.as_ref(),
            ERROR => self.error.as_ref(),
            ITEMS => self.items.as_ref(),
            argument => self.arguments.get(argument - ARGUMENTS)?.1.as_ref(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Traced {
    list: ShapeList,
    fingerprints: Vec<u32>,
    digest: u64,
}

impl MethodShapes {
    /// Creates the shapes that `list` adds to a [`ShapeList`].
    #[must_use]
    pub const fn new(list: fn(&mut ShapeList)) -> Self {
        Self { list, traced: OnceLock::new() }
    }

    /// Traces the shapes when first called, and returns them.
    pub(crate) fn trace(&self) -> &Traced {
        self.traced.get_or_init(|| {
            let mut list = ShapeList::default();
            (self.list)(&mut list);
            Traced::new(list)
        })
    }

    /// Returns the shapes if they have been traced and at least one of them is compared.
    pub(crate) fn traced(&self) -> Option<&Traced> {
        self.traced.get().filter(|traced| !traced.fingerprints.is_empty())
    }
}

impl Traced {
    fn new(list: ShapeList) -> Self {
        let fingerprint = |position| list.at(position).map_or(0, TypeShape::fingerprint);
        let mut fingerprints = (0..ARGUMENTS + list.arguments.len()).map(fingerprint).collect::<Vec<_>>();
        if fingerprints.iter().all(|fingerprint| *fingerprint == 0) {
            fingerprints.clear();
        }
        let mut digest = Fnv::default();
        fingerprints.iter().for_each(|fingerprint| digest.add(&fingerprint.to_le_bytes()));
        Self { list, fingerprints, digest: digest.0 }
    }

    /// Returns a number that distinguishes these shapes from other shapes of the same method.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the fingerprints of the result, the error, the client's items and the arguments. A fingerprint is 0 if the
    /// type is not compared. Empty if all are 0.
    pub(crate) fn fingerprints(&self) -> &[u32] {
        &self.fingerprints
    }

    /// Returns the position of the first difference from a caller with these fingerprints. Arguments that exist on only one
    /// side are not compared.
    pub(crate) fn differs_at(&self, theirs: &[u32]) -> Option<usize> {
        let common = self.fingerprints.len().min(theirs.len());
        let differs = |position: &usize| {
            let (here, there) = (self.fingerprints[*position], theirs[*position]);
            here != 0 && there != 0 && here != there
        };
        // Arguments are compared first, because the call cannot start if they differ, and the other types then do not
        // matter.
        (ARGUMENTS..common).chain([ITEMS, RESULT, ERROR]).filter(|position| *position < common).find(differs)
    }

    /// Returns the name of a position, for a refusal.
    fn name(position: usize) -> String {
        match position {
            RESULT => "result".to_owned(),
            ERROR => "error".to_owned(),
            ITEMS => "items".to_owned(),
            argument => (argument - ARGUMENTS).to_string(),
        }
    }

    /// Describes a position, for the log of the server.
    pub(crate) fn part(&self, position: usize) -> String {
        let argument = position.checked_sub(ARGUMENTS).and_then(|argument| self.list.arguments.get(argument));
        match argument {
            Some((name, _)) => format!("argument `{name}` has another shape"),
            None => format!("{} has another shape", Self::name(position)),
        }
    }

    /// Returns the text of a refusal because of a difference at this position. It consists of the position's name and the
    /// lines of the shape.
    pub(crate) fn refusal(&self, position: usize) -> String {
        let mut text = Self::name(position);
        if let Some(shape) = self.list.at(position) {
            shape.write(&mut text);
        }
        text
    }

    /// Describes the difference from a server that sent this text in its refusal. The text comes from a peer.
    pub(crate) fn difference(&self, theirs: &str) -> Option<String> {
        let mut lines = theirs.split('\n');
        let part = lines.next()?;
        let (name, position) = match part {
            "result" => ("the result".to_owned(), RESULT),
            "error" => ("the error".to_owned(), ERROR),
            "items" => ("the items of the client".to_owned(), ITEMS),
            argument => {
                let argument = argument.parse::<usize>().ok()?;
                let (name, _) = self.list.arguments.get(argument)?;
                (format!("argument {} `{name}`", argument + 1), argument + ARGUMENTS)
            }
        };
        Some(format!("{name}: {}", self.list.at(position)?.difference(lines)))
    }
}

/// Compares addresses, because each method has its own static.
impl PartialEq for MethodShapes {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for MethodShapes {}

impl std::fmt::Debug for MethodShapes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MethodShapes").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(list: &mut ShapeList) {
        list.argument("first", TypeShape::of::<u8>());
        list.argument("second", None);
        list.argument("third", TypeShape::of::<(u8, String)>());
        list.items(TypeShape::of::<u64>());
        list.result(TypeShape::of::<bool>());
    }

    fn traced(list: fn(&mut ShapeList)) -> Traced {
        let mut all = ShapeList::default();
        list(&mut all);
        Traced::new(all)
    }

    #[test]
    fn only_known_common_part_is_compared() {
        let here = traced(number);
        let all = here.fingerprints().to_vec();
        assert_eq!(
            all.iter().map(|fingerprint| *fingerprint != 0).collect::<Vec<_>>(),
            [true, false, true, true, false, true]
        );
        let changed = |position: usize, value| {
            let mut theirs = all.clone();
            theirs[position] = value;
            here.differs_at(&theirs)
        };
        assert_eq!(here.differs_at(&all), None);
        for position in [RESULT, ITEMS, ARGUMENTS, ARGUMENTS + 2] {
            assert_eq!(changed(position, 7), Some(position));
            assert_eq!(changed(position, 0), None, "unchecked");
        }
        assert_eq!((changed(ERROR, 7), changed(ARGUMENTS + 1, 7)), (None, None), "unchecked here");
        assert_eq!(here.differs_at(&all[..4]), None, "arguments that the caller does not know");
        assert_eq!(here.differs_at(&[&all[..], &[7]].concat()), None, "an argument unknown here");
        assert_eq!(here.differs_at(&[7, 7, 7, 7]), Some(ARGUMENTS), "arguments first");
        assert_eq!(here.differs_at(&[]), None);
    }

    #[test]
    fn refusal_names_part_and_difference() {
        let (client, server) = (
            traced(number),
            traced(|list| {
                number(list);
                list.arguments[2].1 = TypeShape::of::<(u8, u16)>();
            }),
        );
        let position = server.differs_at(client.fingerprints()).unwrap();
        let text = server.refusal(position);
        assert_eq!(text, "2\n(\nu8\nu16\n)");
        let told = client.difference(&text);
        assert_eq!(
            told.as_deref(),
            Some("argument 3 `third`: element 2 of it is `string` here and `u16` at the server")
        );
        assert_eq!(server.refusal(RESULT), "result\nbool");
        let told = client.difference("result\nunit");
        assert_eq!(told.as_deref(), Some("the result: it is `bool` here and empty at the server"));
        for hostile in ["", "7\nu8", "1\nu8", "-1", "error\nu8", "\u{1b}[2J"] {
            assert_eq!(client.difference(hostile), None, "{hostile:?}");
        }
    }
}
