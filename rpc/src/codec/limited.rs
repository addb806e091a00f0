//! A serde serializer that wraps another one, limits nesting and stack use, and refuses values that the decoder would
//! misread.
//!
//! The recursion depth of encoding equals the nesting depth of the value, so a long chain could overflow the thread's stack.
//! In a format without names, a field that is left out shifts later fields, and the decoder reads the next field in its
//! place.
//!
//! Codecs wrap their encoders in this serializer. The limits are the same as for decoding. Values are encoded unchanged.
//! Values without nested values have no overhead.

use super::limits::DEPTH;
use super::shapes::{FieldOwner, Kind, Part, REMEDY, Shape, Shapes};
use super::stack::{Encoded, admits};
use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use std::any::type_name;
use std::fmt::Display;

/// Position of a value inside the value being encoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'s> {
    /// Number of levels that may still follow.
    depth: usize,
    stack: Encoded,
    type_name: &'static str,
    part: Part,
    /// The field that contains the value, and the field around that field.
    field: Part,
    context: Part,
    shapes: &'s Shapes,
    /// True directly inside a `Some` if the codec encodes all empty values alike.
    is_in_some: bool,
}

impl<'s> Place<'s> {
    /// Checks that one more level is allowed, and returns the place in that level.
    #[inline]
    fn below<E: Error>(self) -> Result<Self, E> {
        let Some(depth) = self.depth.checked_sub(1) else {
            return Err(E::custom(format_args!("values are nested too deep: more than {DEPTH} levels")));
        };
        if !admits(DEPTH - self.depth, self.stack) {
            return Err(E::custom("values are nested too deep for what is left of the thread's stack"));
        }
        Ok(Self { depth, ..self })
    }

    /// Records a struct or a variant encoded at this place.
    #[inline]
    fn note(self, shape: Shape) {
        self.shapes.note(self.part, shape);
    }

    /// Returns the place of a nested value of type `T`.
    #[inline]
    fn of<T: ?Sized>(self, value: &T) -> Self {
        Self {
            stack: Encoded::of(value),
            type_name: type_name::<T>(),
            part: Part::of::<T>().within(self.context),
            is_in_some: false,
            ..self
        }
    }

    /// Returns the place of this field of the current type, for a value of any type.
    #[inline]
    fn as_field(self, field: Part) -> Self {
        Self { field, context: field.within(self.field), ..self }
    }

    /// Records a value without parts, if it is encoded by a type's own code, which may choose another kind next time.
    #[inline]
    fn leaf(self, kind: Kind, is_own: impl Fn(&'static str) -> bool) {
        if !is_own(self.type_name) {
            self.shapes.look_up(self.part, Shape::Leaf(kind));
        }
        self.shapes.add(kind);
    }

    /// Returns the place of the value inside a `Some` or a newtype struct.
    #[inline]
    fn within<T: ?Sized>(self, value: &T, is_in_some: bool) -> Self {
        Self { is_in_some: is_in_some && !self.shapes.are_positional(), ..self.of(value) }
    }

    /// Returns an error for an empty value in a `Some` if the decoder would read it as `None`.
    #[inline]
    fn empty<E: Error>(self) -> Result<(), E> {
        if self.is_in_some { Err(empty_error(self.type_name)) } else { Ok(()) }
    }

    /// Records a collection. Returns an error if its length is unknown and the codec requires one.
    #[inline]
    fn elements<E: Error>(self, length: Option<usize>, kind: Kind) -> Result<(), E> {
        match length {
            Some(0) => self.leaf(kind, is_collection),
            _ => {
                self.note(Shape::Elements(kind));
                self.shapes.add(kind);
            }
        }
        if length.is_none() && self.shapes.are_positional() {
            Err(unsized_error(self.type_name))
        } else {
            Ok(())
        }
    }

    /// Returns an error for a field that is left out if the decoder cannot detect this.
    fn skip<E: Error>(self, owner: impl Display, field: &str) -> Result<(), E> {
        if !self.shapes.are_positional() {
            return Ok(());
        }
        Err(E::custom(format_args!(
            "field `{field}` of {owner} is left out (serde's `skip_serializing_if`), which the decoder cannot see: \
             {REMEDY}"
        )))
    }
}

#[cold]
fn empty_error<E: Error>(type_name: &str) -> E {
    E::custom(format_args!(
        "`Some` of an empty `{type_name}` arrives as `None` by this codec: use the codec Bincode for this service, or \
         put the value into a struct or a `Vec`"
    ))
}

#[cold]
fn unsized_error<E: Error>(type_name: &str) -> E {
    E::custom(format_args!(
        "`{type_name}` is encoded as a map or sequence of unknown length (as by serde's `flatten`), which this codec \
         cannot hold: {REMEDY}"
    ))
}

/// Removes the reference that serde's collections add to the type name of an element.
#[inline]
fn without_reference(name: &'static str) -> &'static str {
    name.strip_prefix('&').unwrap_or(name)
}

/// Returns true if the type is an option.
#[inline]
fn is_option(name: &'static str) -> bool {
    without_reference(name).starts_with("core::option::Option<")
}

/// Returns true if the type is a collection of the standard library with elements of one type.
#[inline]
fn is_collection(name: &'static str) -> bool {
    let name = without_reference(name);
    ["alloc::vec::Vec<", "alloc::boxed::Box<[", "alloc::collections::", "std::collections::", "["]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Returns true if the type is a tuple or an array.
#[inline]
fn is_tuple(name: &'static str) -> bool {
    without_reference(name).starts_with(['(', '['])
}

/// A value to be encoded within these limits.
pub(super) struct LimitedSerializer<'v, 's, T: ?Sized> {
    value: &'v T,
    place: Place<'s>,
}

impl<'v, 's, T: ?Sized> LimitedSerializer<'v, 's, T> {
    /// Wraps a whole value.
    #[inline]
    pub(super) fn new(value: &'v T, shapes: &'s Shapes) -> Self {
        let place = Place {
            depth: DEPTH,
            stack: Encoded::of(value),
            type_name: type_name::<T>(),
            part: Part::of::<T>(),
            field: Part::of::<T>(),
            context: Part::of::<T>(),
            shapes,
            is_in_some: false,
        };
        Self { value, place }
    }
}

impl<T: Serialize + ?Sized> Serialize for LimitedSerializer<'_, '_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, inner: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Guard { inner, place: self.place })
    }
}

/// A serializer that enforces the limits.
struct Guard<'s, S> {
    inner: S,
    place: Place<'s>,
}

macro_rules! pass_on {
    ($($name:ident: $ty:ty, $kind:ident = $($own:literal)|*;)*) => {
        $(
            #[inline]
            fn $name(self, value: $ty) -> Result<S::Ok, S::Error> {
                self.place.leaf(Kind::$kind, |name| matches!(without_reference(name), $($own)|*));
                self.inner.$name(value)
            }
        )*
    };
}

impl<'s, S: Serializer> Serializer for Guard<'s, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Parts<'s, S::SerializeSeq>;
    type SerializeTuple = Parts<'s, S::SerializeTuple>;
    type SerializeTupleStruct = Parts<'s, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Parts<'s, S::SerializeTupleVariant>;
    type SerializeMap = Parts<'s, S::SerializeMap>;
    type SerializeStruct = Fields<'s, S::SerializeStruct>;
    type SerializeStructVariant = Fields<'s, S::SerializeStructVariant>;

    pass_on! {
        serialize_bool: bool, Bool = "bool"; serialize_i8: i8, I8 = "i8"; serialize_i16: i16, I16 = "i16";
        serialize_i32: i32, I32 = "i32"; serialize_i64: i64, I64 = "i64" | "isize"; serialize_i128: i128, I128 = "i128";
        serialize_u8: u8, U8 = "u8"; serialize_u16: u16, U16 = "u16"; serialize_u32: u32, U32 = "u32";
        serialize_u64: u64, U64 = "u64" | "usize"; serialize_u128: u128, U128 = "u128"; serialize_f32: f32, F32 = "f32";
        serialize_f64: f64, F64 = "f64"; serialize_char: char, Char = "char";
        serialize_str: &str, Bytes = "str" | "alloc::string::String";
        serialize_bytes: &[u8], Bytes = "bytes::bytes::Bytes" | "bytes::bytes_mut::BytesMut";
    }

    #[inline]
    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.place.shapes.look_up(self.place.part, Shape::Unit);
        self.inner.serialize_unit_struct(name)
    }

    #[inline]
    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.place.empty()?;
        if without_reference(self.place.type_name) != "()" {
            self.place.shapes.look_up(self.place.part, Shape::Unit);
        }
        self.inner.serialize_unit()
    }

    #[inline]
    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.place.empty()?;
        self.place.leaf(Kind::Option, is_option);
        self.inner.serialize_none()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.place.shapes.note(self.place.part.and::<T>(), Shape::Some);
        self.place.shapes.add(Kind::Option);
        let place = self.place.below()?.within(value, true);
        self.inner.serialize_some(&LimitedSerializer { value, place })
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.place.note(Shape::Variant { name, index, variant, length: Some(0) });
        self.place.shapes.add(Kind::Enum);
        self.inner.serialize_unit_variant(name, index, variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.place.shapes.note(self.place.part.and::<T>(), Shape::Newtype(name));
        let field = Part::of_type(self.place.type_name).named(name);
        let place = self.place.below()?.as_field(field).within(value, self.place.is_in_some);
        self.inner.serialize_newtype_struct(name, &LimitedSerializer { value, place })
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let shape = Shape::Variant { name, index, variant, length: Some(1) };
        self.place.shapes.note(self.place.part.and::<T>(), shape);
        self.place.shapes.add(Kind::Enum);
        let field = Part::of_type(self.place.type_name).named(variant);
        let place = self.place.below()?.as_field(field).of(value);
        self.inner.serialize_newtype_variant(name, index, variant, &LimitedSerializer { value, place })
    }

    #[inline]
    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.place.elements(length, Kind::List)?;
        let place = self.place.below()?;
        Ok(Parts::elements(self.inner.serialize_seq(length)?, place))
    }

    #[inline]
    fn serialize_tuple(self, length: usize) -> Result<Self::SerializeTuple, S::Error> {
        let place = self.place.below()?;
        let shape = (!is_tuple(place.type_name)).then_some(Shape::Parts(length));
        Ok(Parts::fields(self.inner.serialize_tuple(length)?, place, shape, ""))
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        name: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        let shape = Shape::Tuple(name, length);
        self.place.shapes.record(shape);
        let place = self.place.below()?;
        Ok(Parts::fields(self.inner.serialize_tuple_struct(name, length)?, place, Some(shape), name))
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        let shape = Shape::Variant { name, index, variant, length: Some(length) };
        self.place.shapes.record(shape);
        self.place.shapes.add(Kind::Enum);
        let place = self.place.below()?;
        let inner = self.inner.serialize_tuple_variant(name, index, variant, length)?;
        Ok(Parts::fields(inner, place, Some(shape), variant))
    }

    #[inline]
    fn serialize_map(self, length: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.place.elements(length, Kind::Map)?;
        let place = self.place.below()?;
        Ok(Parts::elements(self.inner.serialize_map(length)?, place))
    }

    #[inline]
    fn serialize_struct(self, name: &'static str, length: usize) -> Result<Self::SerializeStruct, S::Error> {
        let place = self.place.below()?;
        let inner = self.inner.serialize_struct(name, length)?;
        Ok(Fields::open(inner, place, Shape::Struct, FieldOwner { name, variant: None }, length))
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        let shape = Shape::Variant { name, index, variant, length: None };
        self.place.shapes.record(shape);
        self.place.shapes.add(Kind::Enum);
        let place = self.place.below()?;
        let inner = self.inner.serialize_struct_variant(name, index, variant, length)?;
        Ok(Fields::open(inner, place, shape, FieldOwner { name, variant: Some(variant) }, length))
    }

    #[inline]
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.place.leaf(Kind::Bytes, |_| false);
        self.inner.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Number of elements of a collection whose positions are distinguished.
const POSITIONS: usize = 16;

/// The unnamed parts of a value.
struct Parts<'s, S> {
    inner: S,
    place: Place<'s>,
    /// The shape of the fields, which is looked up with their types.
    shape: Option<Shape>,
    /// True if the parts are elements and may have different types.
    is_mixed: bool,
    /// Number of parts so far.
    position: usize,
    /// The types of all fields.
    types: Part,
    /// The types of the last element, or of the last key and the last value.
    last: [Part; 2],
    /// The struct or variant that contains the fields.
    owner: Part,
}

impl<'s, S> Parts<'s, S> {
    /// Creates the parts for the elements of a collection.
    #[inline]
    fn elements(inner: S, place: Place<'s>) -> Self {
        let is_mixed = place.shapes.are_positional() && !is_collection(place.type_name);
        let none = Part::of_type("");
        let last = [none, none];
        Self { inner, place, shape: None, is_mixed, position: 0, types: none, last, owner: none }
    }

    /// Creates the parts for fields. `name` is the name of the struct or the variant.
    #[inline]
    fn fields(inner: S, place: Place<'s>, shape: Option<Shape>, name: &'static str) -> Self {
        let owner = Part::of_type(place.type_name).named(name);
        let (types, last) = (place.part, [owner, owner]);
        Self { inner, place, shape, is_mixed: false, position: 0, types, last, owner }
    }

    /// Returns the place of part 0 of an entry (an element or a key) or part 1 (a value).
    #[inline]
    fn entry<T: ?Sized>(&mut self, value: &T, part: usize) -> Place<'s> {
        let place = self.place.of(value);
        if self.is_mixed {
            let element = Part::of::<T>();
            if self.last[part] != element {
                self.last[part] = element;
                let element = element.at(self.position.min(POSITIONS)).at(part);
                self.place.shapes.look_up(element.within(self.place.part), Shape::Parts(0));
            }
            self.position += 1;
        }
        place
    }

    /// Returns the place of the next field.
    #[inline]
    fn field<T: ?Sized>(&mut self, value: &T) -> Place<'s> {
        if self.shape.is_some() {
            self.types = self.types.and::<T>();
        }
        self.position += 1;
        self.place.as_field(self.owner.at(self.position.min(POSITIONS))).of(value)
    }

    /// Looks up the fields.
    #[inline]
    fn close(&self) {
        if let Some(shape) = self.shape {
            self.place.shapes.look_up(self.types, shape);
        }
    }
}

macro_rules! parts {
    ($($compound:ident { $($part:ident: $place:ident($($position:literal)?)),* })*) => {
        $(
            impl<S: $compound> $compound for Parts<'_, S> {
                type Ok = S::Ok;
                type Error = S::Error;

                $(
                    #[inline]
                    fn $part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
                        let place = self.$place(value $(, $position)?);
                        self.inner.$part(&LimitedSerializer { value, place })
                    }
                )*

                #[inline]
                fn end(self) -> Result<S::Ok, S::Error> {
                    self.close();
                    self.inner.end()
                }
            }
        )*
    };
}

parts! {
    SerializeSeq { serialize_element: entry(0) }
    SerializeMap { serialize_key: entry(0), serialize_value: entry(1) }
    SerializeTuple { serialize_element: field() }
    SerializeTupleStruct { serialize_field: field() }
    SerializeTupleVariant { serialize_field: field() }
}

/// The named fields of a struct or a variant.
struct Fields<'s, S> {
    inner: S,
    place: Place<'s>,
    owner: FieldOwner,
    shape: Shape,
    /// The names and types of all fields.
    types: Part,
    /// Number of fields that the type announced.
    announced: usize,
    /// Number of fields so far.
    written: usize,
}

impl<'s, S> Fields<'s, S> {
    #[inline]
    fn open(inner: S, place: Place<'s>, shape: Shape, owner: FieldOwner, announced: usize) -> Self {
        place.shapes.open(owner);
        Self { inner, place, owner, shape, types: place.part, announced, written: 0 }
    }

    /// Returns the place of the next field.
    #[inline]
    fn field<T: ?Sized>(&mut self, field: &'static str, value: &T) -> Place<'s> {
        self.place.shapes.field(field);
        self.types = self.types.and_field::<T>(field);
        self.written += 1;
        let FieldOwner { name, variant } = self.owner;
        let owner = Part::of_type(self.place.type_name).named(variant.unwrap_or(name));
        self.place.as_field(owner.named(field)).of(value)
    }

    #[inline]
    fn close<E: Error>(&self) -> Result<(), E> {
        self.place.shapes.close();
        self.place.shapes.look_up(self.types, self.shape);
        if self.written == self.announced || !self.place.shapes.are_positional() {
            Ok(())
        } else {
            self.miscounted()
        }
    }

    #[cold]
    fn miscounted<E: Error>(&self) -> Result<(), E> {
        let (owner, announced, written) = (self.owner, self.announced, self.written);
        Err(E::custom(format_args!("{owner} announces {announced} fields and encodes {written}: {REMEDY}")))
    }
}

macro_rules! fields {
    ($($compound:ident)*) => {
        $(
            impl<S: $compound> $compound for Fields<'_, S> {
                type Ok = S::Ok;
                type Error = S::Error;

                #[inline]
                fn serialize_field<T: Serialize + ?Sized>(
                    &mut self,
                    field: &'static str,
                    value: &T,
                ) -> Result<(), S::Error> {
                    let place = self.field(field, value);
                    self.inner.serialize_field(field, &LimitedSerializer { value, place })
                }

                #[cold]
                fn skip_field(&mut self, field: &'static str) -> Result<(), S::Error> {
                    self.place.skip(self.owner, field)?;
                    self.inner.skip_field(field)
                }

                #[inline]
                fn end(self) -> Result<S::Ok, S::Error> {
                    self.close()?;
                    self.inner.end()
                }
            }
        )*
    };
}

fields! { SerializeStruct SerializeStructVariant }

#[cfg(test)]
mod tests {
    use super::super::{Bincode, CodecFor};
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Newtype(Option<Box<Self>>);

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Node {
        below: Vec<Self>,
    }

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Keyed {
        below: BTreeMap<u8, Self>,
    }

    #[derive(Debug, Default, Serialize, Deserialize)]
    enum Tree {
        #[default]
        Leaf,
        Newtype(Box<Self>),
        Tuple(u8, Box<Self>),
        Struct {
            below: Box<Self>,
        },
    }

    /// Creates a deep value. It is never dropped, because dropping it recurses too.
    fn deep<T: Default>(depth: usize, wrap: fn(usize, T) -> T) -> std::mem::ManuallyDrop<T> {
        std::mem::ManuallyDrop::new((0..depth).fold(T::default(), |below, level| wrap(level, below)))
    }

    /// Encodes a value on a stack of 2 MiB, the size of a poller's stack.
    fn encoded<C: CodecFor<T>, T>(value: &T) -> Result<(), String> {
        stacker::grow(2 << 20, || C::encode(value, &mut Vec::new()))
    }

    fn judge<C: CodecFor<T>, T: Default>(wrap: fn(usize, T) -> T) {
        for depth in [300, 30_000] {
            let error = encoded::<C, T>(&deep(depth, wrap)).unwrap_err();
            assert!(error.contains("nested too deep"), "{}: {error}", std::any::type_name::<T>());
        }
        assert_eq!(encoded::<C, T>(&deep(100, wrap)), Ok(()));
    }

    fn judge_all<C>()
    where
        C: CodecFor<Node> + CodecFor<Keyed> + CodecFor<Tree>,
    {
        judge::<C, Node>(|_, below| Node { below: vec![below] });
        judge::<C, Keyed>(|_, below| Keyed { below: BTreeMap::from([(1, below)]) });
        judge::<C, Tree>(|level, below| match level % 3 {
            0 => Tree::Newtype(Box::new(below)),
            1 => Tree::Tuple(1, Box::new(below)),
            _ => Tree::Struct { below: Box::new(below) },
        });
    }

    #[test]
    fn deep_values_are_refused_by_every_codec() {
        judge::<Bincode, Newtype>(|_, below| Newtype(Some(Box::new(below))));
        judge_all::<Bincode>();
        #[cfg(feature = "message-pack")]
        judge_all::<super::super::MessagePack>();
    }

    #[test]
    #[cfg(feature = "message-pack")]
    fn message_pack_refuses_deep_newtypes_before_reaching_innermost_value() {
        use super::super::MessagePack;
        let refusal = |depth| {
            let chain = deep(depth, |_, below| Newtype(Some(Box::new(below))));
            encoded::<MessagePack, Newtype>(&chain).unwrap_err()
        };
        for depth in [150, 300, 30_000] {
            let error = refusal(depth);
            assert!(error.contains("nested too deep"), "{depth}: {error}");
        }
        // A `Some` and a newtype are two levels. The innermost `Some` contains an empty value.
        let error = refusal(120);
        assert!(error.contains("`Some` of an empty"), "{error}");
    }

    #[test]
    fn encoding_and_decoding_have_same_depth_limit() {
        let encoded = |depth| {
            let chain = deep(depth, |_, below| Node { below: vec![below] });
            let mut bytes = Vec::new();
            stacker::grow(16 << 20, || Bincode::encode(&*chain, &mut bytes)).map(|()| bytes)
        };
        let decoded = |bytes: &[u8]| {
            stacker::grow(16 << 20, || {
                super::super::decode::<Bincode, Node>(bytes, &super::super::Unlimited).map(drop)
            })
        };
        // A struct and its list are two levels. The innermost list is the last level.
        assert_eq!(decoded(&encoded(127).unwrap()), Ok(()));
        assert!(encoded(128).is_err());
        assert!(decoded(&[vec![1; 128], vec![0]].concat()).is_err(), "decoding refuses the same");
    }

    /// A struct that announces two fields and writes one.
    struct Miscounted;

    impl Serialize for Miscounted {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            use serde::ser::SerializeStruct as _;
            let mut fields = serializer.serialize_struct("Miscounted", 2)?;
            fields.serialize_field("only", &1_u8)?;
            fields.end()
        }
    }

    #[test]
    fn struct_with_another_number_of_fields_than_announced_is_refused() {
        let error = Bincode::encode_value(&Miscounted, &mut Vec::new()).unwrap_err();
        assert!(error.contains("`Miscounted`") && error.contains('2') && error.contains('1'), "{error}");
    }
}
