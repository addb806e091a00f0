//! Collects errors, so that all of them are reported together.

use quote::ToTokens;
use syn::spanned::Spanned as _;

/// Errors with their spans.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    pub(crate) fn add(&mut self, place: &impl ToTokens, text: impl std::fmt::Display) {
        // `new_spanned` covers all tokens only with compiler support.
        self.push(syn::Error::new(place.span(), text));
    }

    /// Adds an error if `place` contains tokens.
    pub(crate) fn refuse(&mut self, place: &impl ToTokens, text: impl std::fmt::Display) {
        if !place.to_token_stream().is_empty() {
            self.add(place, text);
        }
    }

    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
    }

    /// Returns the number of errors.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(crate) fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
