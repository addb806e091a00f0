//! Encoding recurses into a value, and the value decides how deep: a long chain would overflow the thread's stack. A
//! format without names has no place for a field that is left out: the decoder would take the next one for it.
//!
//! Codecs encode through this serde serializer, which wraps theirs. It limits levels and stack as decoding does, and
//! under a positional codec it refuses what the decoder cannot know. It never changes a value. A value that contains
//! no others costs nothing.

use super::limits::DEPTH;
use super::shapes::{FieldsOf, Kind, Part, REMEDY, Shape, Shapes, described};
use super::stack::{Encoded, admits};
use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use std::any::type_name;
use std::fmt::Display;

/// Position of a value within the value being encoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'s> {
    /// Number of levels that may follow.
    depth: usize,
    stack: Encoded,
    type_name: &'static str,
    part: Part,
    shapes: &'s Shapes,
    /// True directly within a `Some`, under a codec that encodes all empty values alike.
    is_in_some: bool,
}

impl<'s> Place<'s> {
    /// Checks that one more level may follow, and returns its place.
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

    /// Notes a struct or a variant that is encoded here.
    #[inline]
    fn note(self, shape: Shape) {
        self.shapes.note(self.part, shape);
    }

    /// Returns the place of a value of type `T` within this one.
    #[inline]
    fn of<T: ?Sized>(self, value: &T) -> Self {
        Self {
            stack: Encoded::of(value),
            type_name: type_name::<T>(),
            part: Part::of::<T>(),
            is_in_some: false,
            ..self
        }
    }

    /// Returns the place of the value in a `Some` or a newtype struct here.
    #[inline]
    fn within<T: ?Sized>(self, value: &T, is_in_some: bool) -> Self {
        Self { is_in_some: is_in_some && !self.shapes.are_positional(), ..self.of(value) }
    }

    /// Refuses an empty value in a `Some`, where the decoder would take both for `None`.
    #[inline]
    fn empty<E: Error>(self) -> Result<(), E> {
        if self.is_in_some { Err(empty_error(self.type_name)) } else { Ok(()) }
    }

    /// Notes a collection. Refuses one of unknown length, where the codec needs one.
    #[inline]
    fn elements<E: Error>(self, length: Option<usize>, kind: Kind) -> Result<(), E> {
        if length != Some(0) {
            self.note(Shape::Elements);
        }
        self.shapes.add(kind);
        if length.is_none() && self.shapes.are_positional() {
            Err(unsized_error(self.type_name))
        } else {
            Ok(())
        }
    }

    /// Refuses a field that is left out, where the decoder would not know.
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

/// A value that is encoded within these limits.
pub(super) struct Guarded<'v, 's, T: ?Sized> {
    value: &'v T,
    place: Place<'s>,
}

impl<'v, 's, T: ?Sized> Guarded<'v, 's, T> {
    /// Wraps a whole value.
    #[inline]
    pub(super) fn new(value: &'v T, shapes: &'s Shapes) -> Self {
        let place = Place {
            depth: DEPTH,
            stack: Encoded::of(value),
            type_name: type_name::<T>(),
            part: Part::of::<T>(),
            shapes,
            is_in_some: false,
        };
        Self { value, place }
    }
}

impl<T: Serialize + ?Sized> Serialize for Guarded<'_, '_, T> {
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
    ($($name:ident: $ty:ty, $kind:ident;)*) => {
        $(
            #[inline]
            fn $name(self, value: $ty) -> Result<S::Ok, S::Error> {
                self.place.shapes.add(Kind::$kind);
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
        serialize_bool: bool, Bool; serialize_i8: i8, I8; serialize_i16: i16, I16; serialize_i32: i32, I32;
        serialize_i64: i64, I64; serialize_i128: i128, I128; serialize_u8: u8, U8; serialize_u16: u16, U16;
        serialize_u32: u32, U32; serialize_u64: u64, U64; serialize_u128: u128, U128; serialize_f32: f32, F32;
        serialize_f64: f64, F64; serialize_char: char, Char; serialize_str: &str, Bytes; serialize_bytes: &[u8], Bytes;
    }

    #[inline]
    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.inner.serialize_unit_struct(name)
    }

    #[inline]
    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.place.empty()?;
        self.inner.serialize_unit()
    }

    #[inline]
    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.place.empty()?;
        self.place.shapes.add(Kind::Option);
        self.inner.serialize_none()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.place.note(Shape::Some);
        self.place.shapes.add(Kind::Option);
        let place = self.place.below()?.within(value, true);
        self.inner.serialize_some(&Guarded { value, place })
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
        self.place.note(Shape::Newtype(name));
        let place = self.place.below()?.within(value, self.place.is_in_some);
        self.inner.serialize_newtype_struct(name, &Guarded { value, place })
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.place.note(Shape::Variant { name, index, variant, length: Some(1) });
        self.place.shapes.add(Kind::Enum);
        let place = self.place.below()?.of(value);
        self.inner.serialize_newtype_variant(name, index, variant, &Guarded { value, place })
    }

    #[inline]
    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.place.elements(length, Kind::List)?;
        let place = self.place.below()?;
        Ok(Parts { inner: self.inner.serialize_seq(length)?, place, position: 0 })
    }

    #[inline]
    fn serialize_tuple(self, length: usize) -> Result<Self::SerializeTuple, S::Error> {
        let place = self.place.below()?;
        Ok(Parts { inner: self.inner.serialize_tuple(length)?, place, position: 0 })
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        name: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.place.note(Shape::Tuple(name, length));
        let place = self.place.below()?;
        Ok(Parts { inner: self.inner.serialize_tuple_struct(name, length)?, place, position: 0 })
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.place.note(Shape::Variant { name, index, variant, length: Some(length) });
        self.place.shapes.add(Kind::Enum);
        let place = self.place.below()?;
        Ok(Parts {
            inner: self.inner.serialize_tuple_variant(name, index, variant, length)?,
            place,
            position: 0,
        })
    }

    #[inline]
    fn serialize_map(self, length: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.place.elements(length, Kind::Map)?;
        let place = self.place.below()?;
        Ok(Parts { inner: self.inner.serialize_map(length)?, place, position: 0 })
    }

    #[inline]
    fn serialize_struct(self, name: &'static str, length: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.place.note(Shape::Struct(name));
        let place = self.place.below()?;
        let inner = self.inner.serialize_struct(name, length)?;
        Ok(Fields::open(inner, place, (name, None), length))
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.place.note(Shape::Variant { name, index, variant, length: None });
        self.place.shapes.add(Kind::Enum);
        let place = self.place.below()?;
        let inner = self.inner.serialize_struct_variant(name, index, variant, length)?;
        Ok(Fields::open(inner, place, (name, Some(variant)), length))
    }

    #[inline]
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.place.shapes.add(Kind::Bytes);
        self.inner.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// The parts of a value, without names.
struct Parts<'s, S> {
    inner: S,
    place: Place<'s>,
    /// Number of fields so far, if the parts are fields.
    position: usize,
}

impl<'s, S> Parts<'s, S> {
    /// Returns the place of an element.
    #[inline]
    fn element<T: ?Sized>(&mut self, value: &T) -> Place<'s> {
        self.place.of(value)
    }

    /// Returns the place of the next field.
    #[inline]
    fn field<T: ?Sized>(&mut self, value: &T) -> Place<'s> {
        let place = self.place.of(value);
        self.position += 1;
        Place { part: place.part.at(self.position), ..place }
    }
}

macro_rules! parts {
    ($($compound:ident $part:ident $place:ident;)*) => {
        $(
            impl<S: $compound> $compound for Parts<'_, S> {
                type Ok = S::Ok;
                type Error = S::Error;

                #[inline]
                fn $part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
                    let place = self.$place(value);
                    self.inner.$part(&Guarded { value, place })
                }

                #[inline]
                fn end(self) -> Result<S::Ok, S::Error> {
                    self.inner.end()
                }
            }
        )*
    };
}

parts! {
    SerializeSeq serialize_element element;
    SerializeTuple serialize_element element;
    SerializeTupleStruct serialize_field field;
    SerializeTupleVariant serialize_field field;
}

impl<S: SerializeMap> SerializeMap for Parts<'_, S> {
    type Ok = S::Ok;
    type Error = S::Error;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_key(&Guarded { value, place: self.place.of(value) })
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.inner.serialize_value(&Guarded { value, place: self.place.of(value) })
    }

    #[inline]
    fn end(self) -> Result<S::Ok, S::Error> {
        self.inner.end()
    }
}

/// The named fields of a struct or a variant.
struct Fields<'s, S> {
    inner: S,
    place: Place<'s>,
    owner: FieldsOf,
    /// Number of fields that the type has announced.
    announced: usize,
    /// Number of fields so far.
    written: usize,
}

impl<'s, S> Fields<'s, S> {
    #[inline]
    fn open(inner: S, place: Place<'s>, owner: FieldsOf, announced: usize) -> Self {
        place.shapes.open(owner);
        Self { inner, place, owner, announced, written: 0 }
    }

    #[inline]
    fn note_field(&mut self, field: &'static str) {
        self.place.shapes.field(field);
        self.written += 1;
    }

    #[inline]
    fn close<E: Error>(&self) -> Result<(), E> {
        self.place.shapes.close();
        if self.written == self.announced || !self.place.shapes.are_positional() {
            Ok(())
        } else {
            self.miscounted()
        }
    }

    #[cold]
    fn miscounted<E: Error>(&self) -> Result<(), E> {
        let (owner, announced, written) = (described(self.owner), self.announced, self.written);
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
                    self.note_field(field);
                    let place = self.place.of(value);
                    let place = Place { part: place.part.named(field), ..place };
                    self.inner.serialize_field(field, &Guarded { value, place })
                }

                #[cold]
                fn skip_field(&mut self, field: &'static str) -> Result<(), S::Error> {
                    self.place.skip(described(self.owner), field)?;
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

    /// Creates a deep value, which is not dropped: dropping it recurses too.
    fn deep<T: Default>(depth: usize, wrap: fn(usize, T) -> T) -> std::mem::ManuallyDrop<T> {
        std::mem::ManuallyDrop::new((0..depth).fold(T::default(), |below, level| wrap(level, below)))
    }

    /// Encodes on a stack of 2 MiB, as a poller has.
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
    fn message_pack_refuses_deep_newtypes_before_it_reaches_their_end() {
        use super::super::MessagePack;
        let refusal = |depth| {
            let chain = deep(depth, |_, below| Newtype(Some(Box::new(below))));
            encoded::<MessagePack, Newtype>(&chain).unwrap_err()
        };
        for depth in [150, 300, 30_000] {
            let error = refusal(depth);
            assert!(error.contains("nested too deep"), "{depth}: {error}");
        }
        // A `Some` and a newtype are two levels, and the innermost `Some` has an empty value.
        let error = refusal(120);
        assert!(error.contains("`Some` of an empty"), "{error}");
    }

    #[test]
    fn a_value_too_deep_for_a_small_stack_is_refused() {
        let chain = deep(100, |_, below| Newtype(Some(Box::new(below))));
        let error = stacker::grow(100_000, || Bincode::encode(&*chain, &mut Vec::new())).unwrap_err();
        assert!(error.contains("nested too deep") && error.contains("stack"), "{error}");
    }

    #[test]
    fn as_many_levels_are_encoded_as_are_decoded() {
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
        // A struct and its list are two levels, and the innermost list is the last one.
        assert_eq!(decoded(&encoded(127).unwrap()), Ok(()));
        assert!(encoded(128).is_err());
        assert!(decoded(&[vec![1; 128], vec![0]].concat()).is_err(), "decoding refuses the same");
    }

    /// Announces two fields and writes one.
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
    fn a_struct_with_another_number_of_fields_than_announced_is_refused() {
        let error = Bincode::encode_value(&Miscounted, &mut Vec::new()).unwrap_err();
        assert!(error.contains("`Miscounted`") && error.contains('2') && error.contains('1'), "{error}");
    }
}
