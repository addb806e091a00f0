//! Detects types whose encoding and decoding differ. serde derives both separately, and attributes can leave out a field or
//! a variant in one of them. A codec with names detects the difference. A positional codec would decode wrong values without
//! an error.
//!
//! When a struct or a variant is first encoded as part of a type, the bytes are decoded again. The kinds of all values, and
//! the names of fields and variants, are then compared. Later encodings cost one look-up in a table. If a type's own code
//! chooses the encoding, its values are looked up each time, because each value can be encoded differently. For a codec with
//! names, only structs and variants with unnamed fields are compared.

use std::any::type_name;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Remedy for a type that a positional codec cannot encode.
pub(super) const REMEDY: &str =
    "use the codec MessagePack (feature `message-pack`) for this service, or another type";

/// Number of entries in the table.
const ENTRIES: usize = 1 << 12;
/// Maximum number of entries probed for one shape. If none of them is free, the shape is checked each time.
const TRIES: usize = 8;
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes of the checked shapes; 0 for an unused entry. Entries are independent.
///
/// The table is global because a static in generic code is shared by all types, and codecs have no values that could hold a
/// table.
static CHECKED: [AtomicU64; ENTRIES] = [const { AtomicU64::new(0) }; ENTRIES];

/// Returns the entries in which a hash may be stored.
fn entries(hash: u64) -> impl Iterator<Item = &'static AtomicU64> {
    let first = (hash >> 52) as usize;
    (0..TRIES).map(move |next| &CHECKED[(first + next) % ENTRIES])
}

fn is_checked(hash: u64) -> bool {
    entries(hash).any(|entry| entry.load(Ordering::Relaxed) == hash)
}

fn set_checked(hash: u64) {
    let is_set =
        |entry: &AtomicU64| match entry.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(other) => other == hash,
        };
    let _ = entries(hash).any(is_set);
}

/// Encoding of a value without parts, or of the first bytes of a value with parts. Structs and tuples add no bytes to their
/// parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Bool,
    I8,
    I16,
    I32,
    I64,
    I128,
    U8,
    U16,
    U32,
    U64,
    U128,
    F32,
    F64,
    Char,
    /// A text or bytes, which a codec without names does not distinguish.
    Bytes,
    Option,
    List,
    Map,
    Enum,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A struct, a variant of an enum, or an optional part of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    /// The whole value, which its own code may encode as any other type.
    Whole,
    /// A value of this kind without parts, encoded by another type's code.
    Leaf(Kind),
    /// A value that takes zero bytes.
    Unit,
    Struct,
    Newtype(&'static str),
    /// The value in an `Option`.
    Some,
    /// The elements of a list or a map.
    Elements(Kind),
    /// Unnamed parts, with their number.
    Parts(usize),
    /// A struct with unnamed fields, with their number.
    Tuple(&'static str, usize),
    /// `length` is the number of unnamed fields; `None` if the fields have names.
    Variant {
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: Option<usize>,
    },
}

impl Shape {
    /// Returns the hash of the shape in a part of the type with this number.
    #[inline]
    fn hash(self, whole: usize, part: Part) -> u64 {
        let number = match self {
            Self::Struct => 0,
            Self::Whole => 1 << 61,
            Self::Newtype(_) => 1 << 62,
            Self::Some => 2 << 62,
            Self::Elements(kind) => (3 << 62) | kind as u64,
            Self::Leaf(kind) => (5 << 61) | kind as u64,
            Self::Unit => 6 << 60,
            Self::Parts(length) => (7 << 60) ^ length as u64,
            Self::Tuple(_, length) => (length as u64 + 1) << 32,
            Self::Variant { index, length, .. } => {
                (length.map_or(0, |length| length as u64 + 1) << 33) | (u64::from(index) + 1)
            }
        };
        let mixed = ((whole as u64).wrapping_mul(ODD) ^ part.0).wrapping_mul(ODD).rotate_left(32) ^ number;
        mixed.wrapping_mul(ODD) | 1
    }
}

/// A part of a value, identified by its type and the fields that contain it. The type name alone does not distinguish two
/// fields with a `serialize_with`, or two structs with a field of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part(u64);

impl Part {
    /// Returns the part of this type.
    #[inline]
    pub(super) fn of<T: ?Sized>() -> Self {
        Self::of_type(type_name::<T>())
    }

    /// Returns the part of the type with this name.
    #[inline]
    pub(super) fn of_type(name: &'static str) -> Self {
        Self(name.as_ptr().addr() as u64)
    }

    /// Returns the part inside `outer`.
    #[inline]
    pub(super) fn within(self, outer: Self) -> Self {
        Self(outer.0.wrapping_mul(ODD) ^ self.0)
    }

    /// Returns the part, extended by a part of this type.
    #[inline]
    pub(super) fn and<T: ?Sized>(self) -> Self {
        Self((self.0 ^ Self::of::<T>().0).wrapping_mul(ODD))
    }

    /// Returns the part, extended by a field with this name and type.
    #[inline]
    pub(super) fn and_field<T: ?Sized>(self, field: &'static str) -> Self {
        Self((self.0 ^ Self::of::<T>().0.rotate_left(32) ^ field.as_ptr().addr() as u64).wrapping_mul(ODD))
    }

    /// Returns the part as the field with this name.
    #[inline]
    pub(super) fn named(self, field: &'static str) -> Self {
        Self(self.0.wrapping_mul(ODD) ^ field.as_ptr().addr() as u64)
    }

    /// Returns the part as the field at this position.
    #[inline]
    pub(super) fn at(self, position: usize) -> Self {
        Self(self.0.wrapping_mul(ODD) ^ position as u64)
    }
}

/// The shapes of a value during encoding.
#[derive(Debug)]
pub(super) struct Shapes {
    /// True if the codec sends no names.
    is_positional: bool,
    /// Number of the whole type.
    whole: usize,
    /// Hashes of shapes that are not in the table.
    unchecked: RefCell<Vec<u64>>,
    record: Option<RefCell<Record>>,
}

/// The owner of named fields, which is a struct, or an enum and its variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FieldOwner {
    pub(super) name: &'static str,
    pub(super) variant: Option<&'static str>,
}

impl fmt::Display for FieldOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.variant {
            Some(variant) => write!(f, "variant `{}::{variant}`", self.name),
            None => write!(f, "struct `{}`", self.name),
        }
    }
}

/// Fields in the order of their encoding, with their owner.
type Written = (FieldOwner, Vec<&'static str>);

/// All shapes of one value.
#[derive(Debug, Default)]
struct Record {
    counts: BTreeMap<Shape, usize>,
    fields: BTreeSet<Written>,
    /// Variants in the order of their encoding, with enum, variant and number of fields.
    variants: Vec<(&'static str, &'static str, Option<usize>)>,
    /// Structs and variants that are being encoded, the innermost last.
    open: Vec<Written>,
    /// Kinds of all encoded values, in order.
    kinds: Vec<Kind>,
    /// Position in `kinds` whose place is requested. `place` is the result.
    wanted: Option<usize>,
    place: Option<String>,
}

impl Record {
    fn note(&mut self, shape: Shape) {
        *self.counts.entry(shape).or_default() += 1;
        if let Shape::Variant { name, variant, length, .. } = shape {
            self.variants.push((name, variant, length));
        }
    }

    fn add(&mut self, kind: Kind) {
        if self.wanted == Some(self.kinds.len()) {
            self.place = self.open.last().and_then(|(owner, fields)| {
                let field = fields.last()?;
                Some(format!("field `{field}` of {}", owner))
            });
        }
        self.kinds.push(kind);
    }

    fn has_struct(&self, name: &str) -> bool {
        self.fields.iter().any(|(owner, _)| owner.variant.is_none() && owner.name == name)
    }

    fn has_enum(&self, name: &str) -> bool {
        self.counts
            .keys()
            .any(|shape| matches!(shape, Shape::Variant { name: written, .. } if *written == name))
    }
}

impl Shapes {
    /// Creates the shapes of a value, for a codec without names. `whole` is the number of the value's type.
    #[inline]
    pub(super) fn of_type(whole: usize) -> Self {
        Self { is_positional: true, whole, unchecked: RefCell::new(Vec::new()), record: None }
    }

    /// Creates the shapes for a codec that sends names, in which only unnamed fields can be confused.
    #[cfg(feature = "message-pack")]
    #[inline]
    pub(super) fn of_named(whole: usize) -> Self {
        Self { is_positional: false, ..Self::of_type(whole) }
    }

    /// Enables recording of all shapes.
    pub(super) fn recorded(self) -> Self {
        Self { record: Some(RefCell::default()), ..self }
    }

    /// Enables recording of all shapes, and of the place of the value at this position.
    fn recorded_at(position: usize) -> Self {
        let record = Record { wanted: Some(position), ..Record::default() };
        Self { record: Some(RefCell::new(record)), ..Self::of_type(0) }
    }

    /// Returns true if the codec sends no names.
    #[inline]
    pub(super) fn are_positional(&self) -> bool {
        self.is_positional
    }

    /// Records a shape that is encoded in a value of the type `part`.
    #[inline]
    pub(super) fn note(&self, part: Part, shape: Shape) {
        self.record(shape);
        self.look_up(part, shape);
    }

    /// Records a shape. Its parts follow.
    #[inline]
    pub(super) fn record(&self, shape: Shape) {
        if let Some(record) = &self.record
            && self.compares(shape)
        {
            record.borrow_mut().note(shape);
        }
    }

    /// Looks up a shape in a value of the type `part`. If the shape has not been checked, it is added to the unchecked
    /// shapes.
    #[inline]
    pub(super) fn look_up(&self, part: Part, shape: Shape) {
        if self.compares(shape) {
            let hash = shape.hash(self.whole, part);
            if !is_checked(hash) {
                self.add_unchecked(hash);
            }
        }
    }

    /// Returns true if the decoder could read the shape as a different shape.
    #[inline]
    fn compares(&self, shape: Shape) -> bool {
        self.is_positional || matches!(shape, Shape::Tuple(..) | Shape::Variant { length: Some(_), .. })
    }

    #[cold]
    fn add_unchecked(&self, hash: u64) {
        let mut unchecked = self.unchecked.borrow_mut();
        if unchecked.last() != Some(&hash) {
            unchecked.push(hash);
        }
    }

    /// Records that a value of this kind is encoded.
    #[inline]
    pub(super) fn add(&self, kind: Kind) {
        if let Some(record) = &self.record {
            record.borrow_mut().add(kind);
        }
    }

    /// Records an owner. Its fields follow.
    #[inline]
    pub(super) fn open(&self, owner: FieldOwner) {
        if let Some(record) = &self.record {
            record.borrow_mut().open.push((owner, Vec::new()));
        }
    }

    /// Records a field of the innermost owner.
    #[inline]
    pub(super) fn field(&self, field: &'static str) {
        if let Some(record) = &self.record
            && let Some((_, fields)) = record.borrow_mut().open.last_mut()
        {
            fields.push(field);
        }
    }

    /// Records the end of the innermost owner.
    #[inline]
    pub(super) fn close(&self) {
        if let Some(record) = &self.record {
            let mut record = record.borrow_mut();
            let complete = record.open.pop();
            record.fields.extend(complete);
        }
    }

    /// Returns true if all shapes of the value have been checked.
    #[inline]
    pub(super) fn are_checked(&mut self) -> bool {
        self.unchecked.get_mut().is_empty()
    }

    /// Stores in the table that the shapes of the value have been checked.
    pub(super) fn set_checked(self) {
        self.unchecked.into_inner().into_iter().for_each(set_checked);
    }

    /// Returns true if the decoder with these `lists` read all encoded values, with the same kinds.
    pub(super) fn are_read(&self, lists: &Lists) -> bool {
        self.record.as_ref().is_some_and(|record| record.borrow().kinds == *lists.kinds.borrow())
    }

    /// Describes the first value that is decoded as another kind than it was encoded. `encode` encodes the value again.
    pub(super) fn other_kind(
        &self,
        whole: &str,
        lists: &Lists,
        encode: impl FnOnce(&Self) -> Result<(), String>,
    ) -> Option<String> {
        let record = self.record.as_ref()?.borrow();
        let read = lists.kinds.borrow();
        let position = record.kinds.iter().zip(read.iter()).position(|(written, read)| written != read)?;
        let again = Self::recorded_at(position);
        encode(&again).ok()?;
        let place = again.record.and_then(|record| record.into_inner().place);
        let place =
            place.map_or_else(|| format!("a part of `{whole}`"), |place| format!("{place}, in `{whole}`,"));
        let (written, read) = (record.kinds[position], read[position]);
        Some(format!(
            "{place} is encoded as {written} and decoded as {read} (serde's `serialize_with`, `deserialize_with`, \
             `from` or `into` for one side, or a field that one side leaves out): {REMEDY}"
        ))
    }

    /// Describes a struct or a variant with unnamed fields if one side leaves out some of them.
    #[cfg(feature = "message-pack")]
    pub(super) fn other_length(&self, lists: &Lists) -> Option<String> {
        let remedy = "give its fields names, or use another type";
        lists.of_other_length(&self.record.as_ref()?.borrow(), self.is_positional, remedy)
    }

    /// Describes how the decoder with these `lists` confuses a value with a different value. `self` was recorded while the
    /// value was encoded. `again` was recorded while the decoded value was encoded, and is `None` if decoding failed.
    /// `is_whole` is true if both encodings have the same number of bytes.
    pub(super) fn difference(&self, again: Option<&Self>, lists: &Lists, is_whole: bool) -> Option<String> {
        let record = self.record.as_ref()?.borrow();
        let again = again.and_then(|again| again.record.as_ref()).map(RefCell::borrow);
        let moved = record.counts.iter().find_map(|(&shape, &count)| {
            let has_come_back = again.as_ref().is_some_and(|again| again.counts.get(&shape) >= Some(&count));
            if has_come_back { None } else { lists.moved(shape, &record) }
        });
        moved
            .or_else(|| lists.of_other_length(&record, true, REMEDY))
            .or_else(|| {
                record.fields.iter().find_map(|(owner, fields)| lists.unread(*owner, fields, &record))
            })
            .or_else(|| {
                let mut written = record.fields.iter().filter(|_| !is_whole);
                written.find_map(|(owner, fields)| lists.unwritten(*owner, fields, &record))
            })
    }
}

/// Names of fields and variants, including aliases, as listed by the types during decoding.
#[derive(Debug, Default)]
pub(super) struct Lists {
    structs: RefCell<Vec<(&'static str, &'static [&'static str])>>,
    enums: RefCell<Vec<(&'static str, &'static [&'static str])>>,
    /// Structs with unnamed fields, and their number of fields.
    tuples: RefCell<Vec<(&'static str, usize)>>,
    /// Variants in the order in which they are decoded, with enum and fields.
    variants: RefCell<Vec<(&'static str, FieldsRead)>>,
    /// Kinds of all decoded values, in order.
    kinds: RefCell<Vec<Kind>>,
}

/// The fields of a variant as read by the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldsRead {
    /// The variant was not decoded.
    Unknown,
    Named(&'static [&'static str]),
    Unnamed(usize),
}

impl Lists {
    /// Returns true if the decoder has not read any values.
    pub(super) fn are_empty(&self) -> bool {
        self.kinds.borrow().is_empty()
    }

    /// Adds a value of this kind.
    #[cold]
    pub(super) fn add(&self, kind: Kind) {
        self.kinds.borrow_mut().push(kind);
    }

    pub(super) fn add_struct(&self, name: &'static str, fields: &'static [&'static str]) {
        add(&self.structs, (name, fields));
    }

    pub(super) fn add_enum(&self, name: &'static str, variants: &'static [&'static str]) {
        self.add(Kind::Enum);
        add(&self.enums, (name, variants));
        self.variants.borrow_mut().push((name, FieldsRead::Unknown));
    }

    /// Adds the number of a struct's unnamed fields.
    pub(super) fn add_tuple(&self, name: &'static str, length: usize) {
        add(&self.tuples, (name, length));
    }

    /// Records the fields of the last enum's variant.
    pub(super) fn set_fields(&self, fields: FieldsRead) {
        if let Some((_, unknown)) = self.variants.borrow_mut().last_mut() {
            *unknown = fields;
        }
    }

    /// Returns the variants of each enum, with enum, variant and the fields on both sides.
    fn both_sides(
        &self,
        record: &Record,
        is_positional: bool,
    ) -> Vec<(&'static str, &'static str, Option<usize>, FieldsRead)> {
        let decoded = self.variants.borrow();
        let names: BTreeSet<_> = decoded.iter().map(|(name, _)| *name).collect();
        let mut both = Vec::new();
        for name in names {
            let read = decoded.iter().filter(|(listed, _)| *listed == name);
            let written = record.variants.iter().filter(|(written, ..)| *written == name);
            // With names, some values are decoded without being listed, such as the values of an untagged enum.
            if !is_positional && read.clone().count() != written.clone().count() {
                continue;
            }
            both.extend(
                written
                    .zip(read)
                    .map(|(&(name, variant, length), &(_, fields))| (name, variant, length, fields)),
            );
        }
        both
    }

    /// Describes a struct or a variant with unnamed fields if one side leaves out some of them.
    fn of_other_length(&self, record: &Record, is_positional: bool, remedy: &str) -> Option<String> {
        let tuples = self.tuples.borrow();
        let describe = |owner: FieldOwner, written: usize, read: usize| {
            format!(
                "{owner} is encoded with {written} fields and decoded with {read} (serde's `skip_serializing`, \
                 `skip_serializing_if` or `skip_deserializing`): {remedy}"
            )
        };
        let of_tuple = |shape: &Shape| {
            let Shape::Tuple(name, written) = *shape else { return None };
            let mut lengths = tuples.iter().filter(|(listed, _)| *listed == name).map(|(_, length)| *length);
            let first = lengths.clone().next()?;
            let is_read = lengths.any(|length| length == written);
            if is_read { None } else { Some(describe(FieldOwner { name, variant: None }, written, first)) }
        };
        let of_variant = |(name, variant, written, fields)| match (written, fields) {
            (Some(written), FieldsRead::Unnamed(read)) if written != read => {
                Some(describe(FieldOwner { name, variant: Some(variant) }, written, read))
            }
            _ => None,
        };
        let variant = || self.both_sides(record, is_positional).into_iter().find_map(of_variant);
        record.counts.keys().find_map(of_tuple).or_else(variant)
    }

    /// Describes a variant whose number belongs to another variant, or to none, in the decoder.
    fn moved(&self, shape: Shape, record: &Record) -> Option<String> {
        let Shape::Variant { name, index, variant, .. } = shape else { return None };
        let enums = self.enums.borrow();
        let mut lists =
            of_owner(&enums, name, &[variant], |listed| record.has_enum(listed)).into_iter().peekable();
        let taken = lists.peek()?.get(index as usize);
        if lists.any(|variants| variants.get(index as usize) == Some(&variant)) {
            return None;
        }
        let taken = taken.map_or("is none".to_owned(), |taken| format!("is `{taken}`"));
        Some(format!(
            "variant `{name}::{variant}` is encoded as number {index}, which {taken} for the decoder (serde's `skip` \
             or `skip_deserializing` on a variant before it, or a `rename` of one side): {REMEDY}"
        ))
    }

    /// Describes a field that is encoded but not decoded.
    fn unread(&self, owner: FieldOwner, fields: &[&'static str], record: &Record) -> Option<String> {
        let lists = self.fields_of(owner, fields, record);
        if lists.is_empty() || lists.iter().any(|list| first_missing(fields, list).is_none()) {
            return None;
        }
        let field = lists.iter().find_map(|list| first_missing(fields, list))?;
        Some(format!(
            "field `{field}` of {} is encoded, but not decoded at its place (serde's `skip_deserializing`, or a \
             `rename` of one side): {REMEDY}",
            owner
        ))
    }

    /// Describes a field that is decoded but not encoded.
    fn unwritten(&self, owner: FieldOwner, fields: &[&'static str], record: &Record) -> Option<String> {
        let lists = self.fields_of(owner, fields, record);
        if lists.iter().any(|list| list.len() <= fields.len()) {
            return None;
        }
        let field = lists.iter().find_map(|list| list.iter().find(|field| !fields.contains(field)))?;
        Some(format!(
            "field `{field}` of {} is decoded, but not encoded (serde's `skip_serializing`, or `tag` with `content`): {REMEDY}",
            owner
        ))
    }

    /// Returns the lists that can belong to the owner.
    fn fields_of(&self, owner: FieldOwner, fields: &[&str], record: &Record) -> Vec<&'static [&'static str]> {
        let name = owner.name;
        if let Some(variant) = owner.variant {
            let both = self.both_sides(record, true).into_iter();
            let lists = both.filter_map(|(listed, written, _, fields)| match fields {
                FieldsRead::Named(list) if (listed, written) == (name, variant) => Some(list),
                _ => None,
            });
            return lists.collect();
        }
        of_owner(&self.structs.borrow(), name, fields, |listed| record.has_struct(listed))
    }
}

/// Returns the lists with the owner's name. If there are none, the decoder may use another name, because of a one-sided
/// `rename`, or `from` and `into` with different types. In that case, returns the lists that share an item with the owner
/// and whose own name was not encoded.
fn of_owner(
    all: &[(&'static str, &'static [&'static str])],
    name: &str,
    items: &[&str],
    is_encoded: impl Fn(&str) -> bool,
) -> Vec<&'static [&'static str]> {
    let lists = |wanted: &dyn Fn(&str, &[&str]) -> bool| -> Vec<_> {
        all.iter().filter(|(listed, list)| wanted(listed, list)).map(|(_, list)| *list).collect()
    };
    let named = lists(&|listed, _| listed == name);
    if !named.is_empty() {
        return named;
    }
    lists(&|listed, list| !is_encoded(listed) && items.iter().any(|item| list.contains(item)))
}

/// Adds an item unless the list contains it.
fn add<T: PartialEq>(list: &RefCell<Vec<T>>, item: T) {
    let mut list = list.borrow_mut();
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Returns the first of `fields` that `list` lacks or contains in another order.
fn first_missing(fields: &[&'static str], list: &[&str]) -> Option<&'static str> {
    let mut rest = list.iter();
    fields.iter().find(|field| !rest.any(|listed| listed == *field)).copied()
}
