//! Objects of this library to which programs hold pointers.
//!
//! C programs receive a structure that is part of an object of the library. [`hand_out`] creates both, a [`Handle`] finds a
//! structure's object, and [`Handle::release`] destroys both. Programs may read and write fields of the structure at any
//! time, so no reference to it is ever formed. Each [`Field`] is copied in and out separately.

use super::Errno;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

/// A C structure that is part of an object of this library.
///
/// # Safety
/// Every `Object` must contain a `Self` inside an `UnsafeCell`, `OFFSET` bytes from the object's start.
pub(crate) unsafe trait Structure {
    /// The library's object that contains the structure.
    type Object;
    /// Offset of the structure from the start of its object, in bytes.
    const OFFSET: usize = 0;
}

/// A reference to an object of this library. The program passes it as a pointer to the object's C structure.
#[derive(Debug)]
pub(crate) struct Handle<'a, C: Structure> {
    structure: NonNull<C>,
    object: PhantomData<&'a C::Object>,
}

impl<C: Structure> Clone for Handle<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Structure> Copy for Handle<'_, C> {}

impl<'a, C: Structure> Handle<'a, C> {
    /// Returns the object for a required pointer, or `EINVAL` if the pointer is null.
    ///
    /// # Safety
    /// `pointer` must be null or come from [`hand_out`], and the object must not be released during `'a`. The program must
    /// pass only such pointers, and must not destroy an object while a call uses it.
    pub(crate) unsafe fn new(pointer: *mut C) -> Result<Self, Errno> {
        // SAFETY: this function's contract is the same.
        unsafe { Self::optional(pointer) }.ok_or(Errno::EINVAL)
    }

    /// Returns the object for an optional pointer, or `None` if the pointer is null.
    ///
    /// # Safety
    /// Same as [`Self::new`].
    pub(crate) unsafe fn optional(pointer: *mut C) -> Option<Self> {
        NonNull::new(pointer).map(|structure| Self { structure, object: PhantomData })
    }

    /// Returns the object whose structure has an address that [`Self::address`] returned.
    ///
    /// # Safety
    /// The object must not be released during `'a`.
    pub(crate) unsafe fn at(address: usize) -> Result<Self, Errno> {
        // SAFETY: `hand_out` exposed the structure's provenance, and by this function's contract the object is not
        // released.
        unsafe { Self::new(std::ptr::with_exposed_provenance_mut(address)) }
    }

    /// Returns the pointer that the program holds.
    pub(crate) fn as_ptr(self) -> *mut C {
        self.structure.as_ptr()
    }

    /// Returns the address of the structure, which is the object's key in tables.
    pub(crate) fn address(self) -> usize {
        self.structure.addr().get()
    }

    /// Copies a field out of the structure.
    pub(crate) fn get<F: Copy>(self, field: Field<C, F>) -> F {
        // SAFETY: the structure is alive by the constructor's contract and has an `F` there by the contract of
        // `Field`. A concurrent write by another thread would violate the function's manual page.
        unsafe { self.structure.byte_add(field.offset).cast::<F>().read_volatile() }
    }

    /// Stores a field of the structure.
    pub(crate) fn set<F: Copy>(self, field: Field<C, F>, value: F) {
        // SAFETY: as in `get`; the structure is inside of an `UnsafeCell`, so it may be written.
        unsafe { self.structure.byte_add(field.offset).cast::<F>().write_volatile(value) };
    }

    /// Stores a field of the structure, and returns its previous value.
    pub(crate) fn replace<F: Copy>(self, field: Field<C, F>, value: F) -> F {
        let before = self.get(field);
        self.set(field, value);
        before
    }

    /// Releases the object and its structure.
    ///
    /// # Safety
    /// The object must be alive. The calling program, the tables of the library and other handles must not use it
    /// afterwards.
    pub(crate) unsafe fn release(self) {
        // SAFETY: `hand_out` created the box with the structure at this distance from its start, and by
        // this function's contract the object is not used any more.
        drop(unsafe { Box::from_raw(self.structure.as_ptr().byte_sub(C::OFFSET).cast::<C::Object>()) });
    }
}

impl<C: Structure> Deref for Handle<'_, C> {
    type Target = C::Object;

    fn deref(&self) -> &C::Object {
        // SAFETY: by the constructor's contract the structure is part of an object that is not released during `'a`.
        unsafe { self.structure.byte_sub(C::OFFSET).cast::<C::Object>().as_ref() }
    }
}

/// Moves an object to the heap, so that the program can hold a pointer to its structure. The handle is valid until
/// [`Handle::release`].
pub(crate) fn hand_out<'a, C: Structure>(object: C::Object) -> Handle<'a, C> {
    let structure = NonNull::from(Box::leak(Box::new(object))).cast::<C>();
    // SAFETY: by the contract of `Structure` the structure is inside of the object, at this offset.
    let structure = unsafe { structure.byte_add(C::OFFSET) };
    structure.as_ptr().expose_provenance();
    Handle { structure, object: PhantomData }
}

/// A field of the C structure `C`, of type `F`. Created with the macro [`field`].
#[derive(Debug)]
pub(crate) struct Field<C, F> {
    offset: usize,
    types: PhantomData<fn(&C) -> &F>,
}

impl<C, F> Clone for Field<C, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C, F> Copy for Field<C, F> {}

impl<C, F> Field<C, F> {
    /// Creates the field at `offset` in the structure, in bytes. `_types` determines the types.
    ///
    /// # Safety
    /// Every `C` must contain an `F` at that offset.
    pub(crate) const unsafe fn new(offset: usize, _types: fn(&C) -> &F) -> Self {
        Self { offset, types: PhantomData }
    }
}

/// Names a field: `field!(ibv_qp, state)`, `field!(rdma_cm_id, route.addr.src)`.
macro_rules! field {
    ($structure:ty, $($field:tt).+) => {{
        #[allow(unused_unsafe, reason = "the caller may be in an unsafe block itself")]
        // SAFETY: both arguments name the same field of the same structure.
        let field = unsafe {
            $crate::border::Field::new(
                std::mem::offset_of!($structure, $($field).+),
                |structure: &$structure| &structure.$($field).+,
            )
        };
        field
    }};
}
pub(crate) use field;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::ptr::null_mut;
    use std::sync::Arc;

    #[repr(C)]
    struct Pair {
        first: u8,
        second: u32,
    }

    #[repr(C)]
    struct PairObject {
        before: u64,
        pair: UnsafeCell<Pair>,
        held: Arc<()>,
    }

    // SAFETY: the structure is `PairObject::pair`, in an `UnsafeCell`.
    unsafe impl Structure for Pair {
        type Object = PairObject;
        const OFFSET: usize = std::mem::offset_of!(PairObject, pair);
    }

    #[test]
    fn structure_maps_to_its_object_until_release() {
        let held = Arc::new(());
        let pair = UnsafeCell::new(Pair { first: 1, second: 2 });
        let made: Handle<'_, Pair> = hand_out(PairObject { before: 3, pair, held: Arc::clone(&held) });
        // SAFETY: created above, and released below.
        let (found, listed) =
            unsafe { (Handle::new(made.as_ptr()).unwrap(), Handle::<Pair>::at(made.address())) };
        assert_eq!((found.before, listed.unwrap().before), (3, 3));
        assert_eq!(found.replace(field!(Pair, second), 5), 2);
        assert_eq!((made.get(field!(Pair, first)), made.get(field!(Pair, second))), (1, 5));
        // SAFETY: no handle is used after this.
        unsafe { made.release() };
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn null_names_no_object() {
        // SAFETY: null is allowed.
        unsafe {
            assert_eq!(Handle::<Pair>::new(null_mut()).err(), Some(Errno::EINVAL));
            assert!(Handle::<Pair>::optional(null_mut()).is_none());
        }
    }
}
