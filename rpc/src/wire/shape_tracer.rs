//! Traces the shape of a type through the type's `Deserialize`, without a value.
//!
//! A type passes the names of fields and variants to serde before it decodes a value, but proceeds to the next part only
//! after the previous part has a value. The type is therefore decoded repeatedly, from made-up values. Each pass takes one
//! new variant, element or `Some`, and the shortest path everywhere else. A leaf that refuses a value gets another one in
//! the next pass, up to a limit. Beyond the limit, the rest of the leaf's struct stays unknown.
//!
//! A recursive type is represented by a reference to the enclosing type. The number of parts, the number of steps, the depth
//! and the stack are limited. The result depends only on the type, so both sides of a call trace the same shape.

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer as _, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use std::any::type_name;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum number of parts in a type.
const MOST_PARTS: usize = 4096;
/// Maximum number of parts decoded in all passes.
const MOST_STEPS: usize = 1 << 17;
const MOST_DEPTH: usize = 64;
/// Size of the tracer's stack, in bytes. The stack is separate, so that the result does not depend on the caller's stack.
const STACK: usize = 8 << 20;
/// Stack that must remain after a level, in bytes.
const MARGIN: usize = 1 << 20;

/// Texts and bytes that types may accept, such as numbers, identifiers, addresses and dates.
const TEXTS: [&str; 8] = [
    "",
    "1",
    "a",
    "00000000-0000-0000-0000-000000000000",
    "127.0.0.1",
    "1970-01-01T00:00:00Z",
    "1970-01-01",
    "00:00:00",
];
const BYTES: [&[u8]; 5] = [&[], &[0; 16], &[0; 4], &[0; 8], &[0; 32]];

/// A line of a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// The part of the type that the line describes.
    pub(super) place: String,
    /// Description of the shape, which both sides compare. It contains no control characters.
    pub(super) text: String,
}

/// Returns the lines of a type's shape, or `None` if the type has no shape or exceeds a limit.
pub(super) fn trace<T: DeserializeOwned>() -> Option<Vec<Line>> {
    let run = || catch_unwind(AssertUnwindSafe(Tracer::run::<T>)).ok().flatten();
    stacker::grow(STACK, run)
}

/// The error with which a pass ends.
#[derive(Debug)]
struct Ended;

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pass has ended")
    }
}

impl std::error::Error for Ended {}

impl Error for Ended {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

type Names = &'static [&'static str];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    /// A value without parts, identified by a name.
    Leaf(&'static str),
    /// The fields of a unit variant.
    Nothing,
    Option,
    List,
    Map,
    Tuple {
        name: Option<&'static str>,
        length: usize,
    },
    Struct {
        name: &'static str,
        fields: Names,
    },
    Enum {
        name: &'static str,
        variants: Names,
    },
    /// The enclosing named type, identified by the number of named types in between.
    Outer(usize),
}

/// A part of a type.
#[derive(Debug)]
struct Part {
    kind: Kind,
    /// Known parts of this part, in order.
    parts: Vec<usize>,
    /// True if all parts of this part are known.
    is_complete: bool,
    /// True if the part has had a value.
    is_made: bool,
    /// True if passes skip the part until another part has its first value.
    is_blocked: bool,
    /// Number of values that the type refused.
    refused: usize,
    /// The first variant that had a value. It does not contain the enum itself.
    first_made: Option<usize>,
}

/// A named type, identified by its visitor and the names of its parts.
type Key = (&'static str, Names);

struct Tracer {
    parts: Vec<Part>,
    /// Named types that are being decoded, the innermost last.
    open: Vec<(Key, usize)>,
    /// Parts that this pass chose because they are not complete.
    chosen: Vec<usize>,
    /// True if the cause that ended this pass has been recorded.
    is_ended: bool,
    is_beyond_bounds: bool,
    steps: usize,
    /// Number of changes to the tree, and number of parts with a value.
    changes: usize,
    made: usize,
}

impl Tracer {
    fn run<T: DeserializeOwned>() -> Option<Vec<Line>> {
        let mut tracer = Self {
            parts: Vec::new(),
            open: Vec::new(),
            chosen: Vec::new(),
            is_ended: false,
            is_beyond_bounds: false,
            steps: 0,
            changes: 0,
            made: 0,
        };
        let root = tracer.add().ok()?;
        while !tracer.parts[root].is_complete {
            let (changes, made) = (tracer.changes, tracer.made);
            tracer.open.clear();
            tracer.chosen.clear();
            tracer.is_ended = false;
            let at = At { tracer: &mut tracer, part: root, is_made_again: false, depth: 0 };
            if T::deserialize(at).is_err() {
                tracer.blame(root);
            }
            if tracer.is_beyond_bounds {
                return None;
            }
            if tracer.made != made {
                tracer.parts.iter_mut().for_each(|part| part.is_blocked = false);
            }
            if tracer.changes == changes {
                let Some(last) = tracer.chosen.last() else { break };
                tracer.parts[*last].is_blocked = true;
            }
        }
        if tracer.parts[root].kind == Kind::Unknown {
            return None;
        }
        let mut lines = Vec::new();
        tracer.describe(root, "it", None, &mut lines);
        Some(lines)
    }

    fn add(&mut self) -> Result<usize, Ended> {
        if self.parts.len() == MOST_PARTS {
            return Err(self.beyond_bounds());
        }
        self.parts.push(Part {
            kind: Kind::Unknown,
            parts: Vec::new(),
            is_complete: false,
            is_made: false,
            is_blocked: false,
            refused: 0,
            first_made: None,
        });
        Ok(self.parts.len() - 1)
    }

    #[cold]
    fn beyond_bounds(&mut self) -> Ended {
        self.is_beyond_bounds = true;
        self.end()
    }

    /// Ends the pass without recording a cause.
    fn end(&mut self) -> Ended {
        self.is_ended = true;
        Ended
    }

    fn step(&mut self, depth: usize) -> Result<(), Ended> {
        self.steps += 1;
        let has_stack = stacker::remaining_stack().is_none_or(|left| left > MARGIN);
        if self.steps > MOST_STEPS || depth > MOST_DEPTH || !has_stack {
            return Err(self.beyond_bounds());
        }
        Ok(())
    }

    /// Records the kind of a part. The kind must be the same in each pass.
    fn record(&mut self, part: usize, kind: Kind) -> Result<(), Ended> {
        let known = &mut self.parts[part].kind;
        if *known == kind {
            return Ok(());
        }
        if *known != Kind::Unknown {
            return Err(self.beyond_bounds());
        }
        *known = kind;
        self.changes += 1;
        Ok(())
    }

    /// Returns the part at `position` within `part`.
    fn part_of(&mut self, part: usize, position: usize) -> Result<usize, Ended> {
        while self.parts[part].parts.len() <= position {
            let new = self.add()?;
            self.parts[part].parts.push(new);
        }
        Ok(self.parts[part].parts[position])
    }

    /// Records that a part has had a value.
    fn make(&mut self, part: usize) {
        let part = &mut self.parts[part];
        if !part.is_made {
            part.is_made = true;
            self.made += 1;
            self.changes += 1;
        }
    }

    fn complete(&mut self, part: usize) {
        let part = &mut self.parts[part];
        if !part.is_complete {
            part.is_complete = true;
            self.changes += 1;
        }
    }

    /// Marks a part as complete if all parts of it are complete.
    fn complete_with_parts(&mut self, part: usize) {
        if self.parts[part].parts.iter().all(|part| self.parts[*part].is_complete) {
            self.complete(part);
        }
    }

    /// Records that the value of a part was refused, unless a nested part caused the refusal.
    fn blame(&mut self, part: usize) {
        if !self.is_ended {
            self.is_ended = true;
            self.parts[part].refused += 1;
            if matches!(self.parts[part].kind, Kind::Leaf(_) | Kind::Option | Kind::List | Kind::Map)
                && self.parts[part].refused <= TEXTS.len()
            {
                self.changes += 1;
            }
        }
    }

    /// Returns true if this pass visits an optional part, because the part is not complete.
    fn chooses(&mut self, part: usize) -> bool {
        let chosen = !self.parts[part].is_complete && !self.parts[part].is_blocked;
        if chosen {
            self.chosen.push(part);
        }
        chosen
    }

    /// Returns the enclosing part with this type, and the number of named types in between.
    fn outer(&self, part: usize, key: Key) -> Option<(usize, usize)> {
        let at = self.open.iter().rposition(|(open, other)| *open == key && *other != part)?;
        let target = self.open[at].1;
        let mut between = self.open[at..].iter().map(|(_, part)| *part).collect::<Vec<_>>();
        between.retain(|other| *other != target && *other != part);
        between.dedup();
        Some((target, between.len()))
    }

    /// Appends the lines of a part. `owner` is the name of the variant that contains the part.
    fn describe(&self, part: usize, place: &str, owner: Option<&str>, lines: &mut Vec<Line>) {
        let Part { kind, parts, .. } = &self.parts[part];
        let mut line = |place: String, text: String| lines.push(Line { place, text });
        let place_of = |position: usize| parts.get(position).copied();
        match *kind {
            Kind::Unknown => line(place.to_owned(), "?".to_owned()),
            Kind::Leaf(name) => line(place.to_owned(), name.to_owned()),
            Kind::Nothing => {}
            Kind::Outer(level) => line(place.to_owned(), format!("^{level}")),
            Kind::Option => {
                line(place.to_owned(), "option".to_owned());
                self.describe_at(place_of(0), place, lines);
            }
            Kind::List => {
                line(place.to_owned(), "list".to_owned());
                self.describe_at(place_of(0), &format!("an element of {place}"), lines);
            }
            Kind::Map => {
                line(place.to_owned(), "map".to_owned());
                self.describe_at(place_of(0), &format!("a key of {place}"), lines);
                self.describe_at(place_of(1), &format!("a value of {place}"), lines);
            }
            Kind::Tuple { name, length } => {
                let owner = owner.or(name).map(|name| format!("`{name}`"));
                let place_at = |number: usize| match &owner {
                    Some(owner) => format!("field {number} of {owner}"),
                    None => format!("element {number} of {place}"),
                };
                line(place.to_owned(), "(".to_owned());
                for position in 0..length {
                    self.describe_at(place_of(position), &place_at(position + 1), lines);
                }
                lines.push(Line { place: place_at(length + 1), text: ")".to_owned() });
            }
            Kind::Struct { name, fields } => {
                let owner = owner.unwrap_or(name);
                line(place.to_owned(), "{".to_owned());
                for (position, field) in fields.iter().enumerate() {
                    line(
                        format!("field {} of `{owner}`", position + 1),
                        format!(".{}", field.escape_debug()),
                    );
                }
                line(format!("field {} of `{owner}`", fields.len() + 1), "}".to_owned());
                for (position, field) in fields.iter().enumerate() {
                    self.describe_at(place_of(position), &format!("field `{field}` of `{owner}`"), lines);
                }
            }
            Kind::Enum { name, variants } => {
                line(place.to_owned(), "<".to_owned());
                for (position, variant) in variants.iter().enumerate() {
                    let place = format!("variant {} of `{name}`", position + 1);
                    lines.push(Line { place, text: format!("|{}", variant.escape_debug()) });
                    if let Some(part) = place_of(position) {
                        let owner = format!("{name}::{variant}");
                        self.describe(part, &format!("variant `{owner}`"), Some(&owner), lines);
                    }
                }
                let place = format!("variant {} of `{name}`", variants.len() + 1);
                lines.push(Line { place, text: ">".to_owned() });
            }
        }
    }

    fn describe_at(&self, part: Option<usize>, place: &str, lines: &mut Vec<Line>) {
        match part {
            Some(part) => self.describe(part, place, None, lines),
            None => lines.push(Line { place: place.to_owned(), text: "?".to_owned() }),
        }
    }
}

/// The deserializer for a part.
struct At<'t> {
    tracer: &'t mut Tracer,
    part: usize,
    /// True for a repeated value of a part, which provides no information.
    is_made_again: bool,
    depth: usize,
}

impl At<'_> {
    fn below(&mut self, part: usize) -> At<'_> {
        At { tracer: &mut *self.tracer, part, is_made_again: self.is_made_again, depth: self.depth + 1 }
    }

    fn leaf<T: Copy, V>(
        self,
        name: &'static str,
        values: &[T],
        visit: impl FnOnce(T) -> Result<V, Ended>,
    ) -> Result<V, Ended> {
        let Self { tracer, part, depth, .. } = self;
        tracer.step(depth)?;
        tracer.record(part, Kind::Leaf(name))?;
        tracer.complete(part);
        let Some(value) = values.get(tracer.parts[part].refused) else { return Err(tracer.end()) };
        let visited = visit(*value);
        match &visited {
            Ok(_) => tracer.make(part),
            Err(_) => tracer.blame(part),
        }
        visited
    }

    /// Decodes a named type whose parts have these names. Inside itself, the type refers to the enclosing part.
    fn named<V, T>(
        mut self,
        names: Names,
        decode: impl FnOnce(At<'_>) -> Result<T, Ended>,
    ) -> Result<T, Ended> {
        self.tracer.step(self.depth)?;
        let key = (type_name::<V>(), names);
        if !self.is_made_again
            && let Some((outer, level)) = self.tracer.outer(self.part, key)
        {
            self.tracer.record(self.part, Kind::Outer(level))?;
            self.tracer.complete(self.part);
            if !self.tracer.parts[outer].is_made {
                return Err(self.tracer.end());
            }
            self.part = outer;
            self.is_made_again = true;
        }
        self.tracer.open.push((key, self.part));
        let Self { tracer, part, is_made_again, depth } = self;
        let decoded = decode(At { tracer: &mut *tracer, part, is_made_again, depth });
        tracer.open.pop();
        decoded
    }

    /// Visits parts at their places.
    fn fields<'de, V: Visitor<'de>>(
        mut self,
        kind: Kind,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Ended> {
        let part = self.part;
        self.tracer.record(part, kind)?;
        let visited = visitor.visit_seq(Elements { at: self.below(part), taken: 0, length });
        match &visited {
            Ok(_) => {
                self.tracer.complete_with_parts(part);
                self.tracer.make(part);
            }
            Err(_) => {
                self.tracer.blame(part);
                if self.tracer.parts[part].parts.len() == length {
                    self.tracer.complete_with_parts(part);
                }
            }
        }
        visited
    }

    /// Visits a part that contains any number of parts of these kinds.
    fn repeated<V>(
        mut self,
        kind: Kind,
        parts: usize,
        visit: impl FnOnce(At<'_>, bool) -> Result<V, Ended>,
    ) -> Result<V, Ended> {
        let part = self.part;
        self.tracer.step(self.depth)?;
        self.tracer.record(part, kind)?;
        self.tracer.part_of(part, parts - 1)?;
        let first = (0..parts).find_map(|position| {
            let below = self.tracer.parts[part].parts[position];
            (!self.is_made_again && self.tracer.chooses(below)).then_some(below)
        });
        let is_shorter_refused = self.tracer.parts[part].refused % 2 == 1;
        let visited = visit(self.below(part), first.is_some() || is_shorter_refused);
        match &visited {
            Ok(_) => {
                // The type decoded none of the offered parts.
                if let Some(below) = first.filter(|below| self.tracer.parts[*below].kind == Kind::Unknown) {
                    self.tracer.complete(below);
                }
                self.tracer.make(part);
            }
            Err(_) if first.is_none() => self.tracer.blame(part),
            Err(_) => _ = self.tracer.end(),
        }
        self.tracer.complete_with_parts(part);
        visited
    }

    /// Visits a variant of an enum. Chooses a variant that is not complete, or else the first variant that had a value.
    fn variant<'de, V: Visitor<'de>>(
        mut self,
        name: &'static str,
        variants: Names,
        visitor: V,
    ) -> Result<V::Value, Ended> {
        let part = self.part;
        self.tracer.record(part, Kind::Enum { name, variants })?;
        if let Some(last) = variants.len().checked_sub(1) {
            self.tracer.part_of(part, last)?;
        }
        let new = (0..variants.len()).find(|position| {
            let below = self.tracer.parts[part].parts[*position];
            !self.is_made_again && self.tracer.chooses(below)
        });
        let Some(position) = new.or(self.tracer.parts[part].first_made) else {
            return Err(self.tracer.end());
        };
        let below = self.tracer.parts[part].parts[position];
        let visited = visitor.visit_enum(Variant { name: variants[position], at: self.below(below) });
        match &visited {
            Ok(_) => {
                self.tracer.parts[part].first_made.get_or_insert(position);
                self.tracer.make(part);
            }
            // The type rejects this variant.
            Err(_) if !self.tracer.is_ended => {
                self.tracer.complete(below);
                self.tracer.end();
            }
            Err(_) => {}
        }
        self.tracer.complete_with_parts(part);
        visited
    }

    /// Ends the pass at a part that calls `deserialize_any`.
    fn unknown<V>(self) -> Result<V, Ended> {
        self.tracer.complete(self.part);
        Err(self.tracer.end())
    }
}

macro_rules! leaves {
    ($($deserialize:ident $visit:ident $name:literal $values:expr;)*) => {
        $(
            fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
                self.leaf($name, &$values, |value| visitor.$visit(value))
            }
        )*
    };
}

impl<'de> Deserializer<'de> for At<'_> {
    type Error = Ended;

    leaves! {
        deserialize_bool visit_bool "bool" [true, false];
        deserialize_i8 visit_i8 "i8" [1, 0, 2];
        deserialize_i16 visit_i16 "i16" [1, 0, 2];
        deserialize_i32 visit_i32 "i32" [1, 0, 2];
        deserialize_i64 visit_i64 "i64" [1, 0, 2];
        deserialize_i128 visit_i128 "i128" [1, 0, 2];
        deserialize_u8 visit_u8 "u8" [1, 0, 2];
        deserialize_u16 visit_u16 "u16" [1, 0, 2];
        deserialize_u32 visit_u32 "u32" [1, 0, 2];
        deserialize_u64 visit_u64 "u64" [1, 0, 2];
        deserialize_u128 visit_u128 "u128" [1, 0, 2];
        deserialize_f32 visit_f32 "f32" [1.0, 0.0];
        deserialize_f64 visit_f64 "f64" [1.0, 0.0];
        deserialize_char visit_char "char" ['a', '0'];
        deserialize_str visit_borrowed_str "string" TEXTS;
        deserialize_string visit_borrowed_str "string" TEXTS;
        deserialize_bytes visit_borrowed_bytes "bytes" BYTES;
        deserialize_byte_buf visit_borrowed_bytes "bytes" BYTES;
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.leaf("unit", &[()], |()| visitor.visit_unit())
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Ended> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.repeated(Kind::Option, 1, |mut at, is_some| {
            if !is_some {
                return visitor.visit_none();
            }
            let part = at.tracer.part_of(at.part, 0)?;
            visitor.visit_some(at.below(part)).inspect_err(|_| at.tracer.blame(part))
        })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.repeated(Kind::List, 1, |at, has_element| {
            visitor.visit_seq(Elements { at, taken: 0, length: usize::from(has_element) })
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Ended> {
        self.repeated(Kind::Map, 2, |at, has_element| {
            visitor.visit_map(Elements { at, taken: 0, length: if has_element { 2 } else { 0 } })
        })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Ended> {
        self.named::<V, _>(&[], |mut at| {
            let part = at.part;
            visitor.visit_newtype_struct(at.below(part)).inspect_err(|_| at.tracer.blame(part))
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Ended> {
        self.tracer.step(self.depth)?;
        self.fields(Kind::Tuple { name: None, length }, length, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Ended> {
        self.named::<V, _>(&[], |at| at.fields(Kind::Tuple { name: Some(name), length }, length, visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: Names,
        visitor: V,
    ) -> Result<V::Value, Ended> {
        self.named::<V, _>(fields, |at| at.fields(Kind::Struct { name, fields }, fields.len(), visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: Names,
        visitor: V,
    ) -> Result<V::Value, Ended> {
        self.named::<V, _>(variants, |at| at.variant(name, variants, visitor))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Ended> {
        self.unknown()
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Ended> {
        self.unknown()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Ended> {
        self.unknown()
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The elements of a part. Each element of a map is a key and a value.
struct Elements<'t> {
    /// The containing part and its tracer.
    at: At<'t>,
    taken: usize,
    length: usize,
}

impl Elements<'_> {
    fn next<'de, S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Ended> {
        if self.taken == self.length {
            return Ok(None);
        }
        let part = self.at.tracer.part_of(self.at.part, self.taken)?;
        self.taken += 1;
        match seed.deserialize(self.at.below(part)) {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                self.at.tracer.blame(part);
                Err(error)
            }
        }
    }
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Ended;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Ended> {
        self.next(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.length - self.taken)
    }
}

impl<'de> MapAccess<'de> for Elements<'_> {
    type Error = Ended;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Ended> {
        self.next(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Ended> {
        self.next(seed)?.ok_or(Ended)
    }
}

/// A variant of an enum.
struct Variant<'t> {
    name: &'static str,
    at: At<'t>,
}

impl<'de, 't> EnumAccess<'de> for Variant<'t> {
    type Error = Ended;
    type Variant = At<'t>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, At<'t>), Ended> {
        let name: StrDeserializer<'_, Ended> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.at))
    }
}

impl<'de> VariantAccess<'de> for At<'_> {
    type Error = Ended;

    fn unit_variant(self) -> Result<(), Ended> {
        self.tracer.record(self.part, Kind::Nothing)?;
        self.tracer.complete(self.part);
        self.tracer.make(self.part);
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Ended> {
        let Self { tracer, part, is_made_again, depth } = self;
        tracer.record(part, Kind::Tuple { name: None, length: 1 })?;
        let below = tracer.part_of(part, 0)?;
        let made =
            seed.deserialize(At { tracer: &mut *tracer, part: below, is_made_again, depth: depth + 1 });
        match &made {
            Ok(_) => tracer.make(part),
            Err(_) => tracer.blame(below),
        }
        tracer.complete_with_parts(part);
        made
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Ended> {
        self.fields(Kind::Tuple { name: None, length }, length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: Names, visitor: V) -> Result<V::Value, Ended> {
        self.fields(Kind::Struct { name: "", fields }, fields.len(), visitor)
    }
}
