//! Options of the attribute: `name = "..."`, `version = N`, `accepts = M..=N`, `codec = Type`,
//! `crate = path`.

use crate::errors::Errors;
use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::{Attribute, Ident, LitInt, LitStr, Meta, Path, Token, Type};

/// List of the valid options, for error messages.
const ALL: &str =
    "expected `name = \"...\"`, `version = N`, `accepts = M..=N`, `codec = Type` or `crate = path`";

/// The parsed arguments of the attribute.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Name on the wire; the trait's name if `None`.
    pub(crate) name: Option<LitStr>,
    /// Version of the schema; 1 if `None`.
    pub(crate) version: Option<u32>,
    /// Compatible versions; only the version of the schema if `None`.
    pub(crate) accepts: Option<Accepts>,
    /// Type of the codec; bincode if `None`.
    pub(crate) codec: Option<Type>,
    /// Path of the crate `trunkline`; `::trunkline` if `None`.
    pub(crate) krate: Option<Path>,
    is_lost: bool,
}

/// A range of versions.
#[derive(Debug, Clone)]
pub(crate) struct Accepts {
    pub(crate) oldest: u32,
    newest: u32,
    at: Span,
}

impl Accepts {
    /// Maximum number of accepted versions before the newest. The wire format stores the number in one byte.
    const MOST: u32 = 255;

    /// Checks that the range ends with the version of the schema.
    pub(crate) fn check(&self, version: u32, errors: &mut Errors) {
        let Self { oldest, newest, at } = *self;
        let text = if newest != version {
            format!(
                "the accepted versions must end with this one: `version = {version}, accepts = {}..={version}`",
                oldest.min(version)
            )
        } else if oldest > newest {
            format!("empty range: expected the older version first: `accepts = {newest}..={oldest}`")
        } else if newest - oldest > Self::MOST {
            format!("at most {} versions before this one can be accepted", Self::MOST)
        } else {
            return;
        };
        errors.push(syn::Error::new(at, text));
    }
}

impl Options {
    /// Parses the valid options, and reports the others in `errors`.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let parser = |input: ParseStream<'_>| {
            let mut options = Self::default();
            let mut seen = Vec::new();
            while !input.is_empty() {
                if let Err(error) = options.one(input, &mut seen) {
                    errors.push(error);
                    // Skip to the next option, so that the other options and the trait are still checked.
                    while !input.is_empty() && !input.peek(Token![,]) {
                        input.parse::<TokenTree>()?;
                    }
                }
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(options)
        };
        let parsed = parser.parse2(tokens);
        errors.take(parsed).unwrap_or_default()
    }

    /// Parses the options for use where no external crate is named `trunkline`.
    pub(crate) fn parse_renamed(tokens: TokenStream, errors: &mut Errors) -> Self {
        let before = errors.len();
        let mut options = Self::parse(tokens, errors);
        options.is_lost = options.krate.is_none();
        if options.is_lost && errors.len() == before {
            let text = "no crate is named `trunkline` here; if it has another name, or another crate re-exports it, give its path: \
                        `#[rpc::service(crate = rpc)]`";
            errors.push(syn::Error::new(Span::call_site(), text));
        }
        options
    }

    /// Returns true if generated code cannot name the crate `trunkline`.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Parses one option.
    fn one(&mut self, input: ParseStream<'_>, seen: &mut Vec<Ident>) -> syn::Result<()> {
        let key: Ident =
            // `crate` is a keyword.
            Ident::parse_any(input).map_err(|error| syn::Error::new(error.span(), format!("invalid option: {ALL}")))?;
        input.parse::<Token![=]>()?;
        match key.to_string().as_str() {
            "name" => self.name = Some(value(input, "a name in quotes: `name = \"...\"`")?),
            "version" => self.version = Some(version(input)?),
            "accepts" => self.accepts = Some(accepts(input)?),
            "codec" => {
                self.codec = Some(value(input, "the type of a codec: `codec = trunkline::codec::Bincode`")?)
            }
            "crate" => self.krate = Some(path(input)?),
            other => return Err(syn::Error::new(key.span(), format!("unknown option `{other}`: {ALL}"))),
        }
        if seen.contains(&key) {
            return Err(syn::Error::new(key.span(), format!("duplicate option `{key}`")));
        }
        seen.push(key);
        Ok(())
    }
}

/// Parses the value of an option. `what` names the expected value in the error.
fn value<T: Parse>(input: ParseStream<'_>, what: &str) -> syn::Result<T> {
    let at = input.span();
    input.parse().map_err(|_| syn::Error::new(at, format!("expected {what}")))
}

/// Parses a path without type arguments, as required by an import.
fn path(input: ParseStream<'_>) -> syn::Result<Path> {
    const WHAT: &str = "the path of the crate `trunkline`, without quotes: `crate = facade::trunkline`";
    let at = input.span();
    input.call(Path::parse_mod_style).map_err(|_| syn::Error::new(at, format!("expected {WHAT}")))
}

fn version(input: ParseStream<'_>) -> syn::Result<u32> {
    const WHAT: &str = "a version, a number from 0 to 4294967295: `version = 2`";
    let at: Span = input.span();
    value::<LitInt>(input, WHAT)?.base10_parse().map_err(|_| syn::Error::new(at, format!("expected {WHAT}")))
}

fn accepts(input: ParseStream<'_>) -> syn::Result<Accepts> {
    let at = input.span();
    let oldest = version(input)?;
    if input.parse::<Token![..=]>().is_err() {
        return Err(syn::Error::new(at, "expected a range of versions: `version = 3, accepts = 2..=3`"));
    }
    Ok(Accepts { oldest, newest: version(input)?, at })
}

/// Returns the options of an attribute in a source text.
pub(crate) fn of(attribute: &Attribute) -> TokenStream {
    match &attribute.meta {
        Meta::List(list) => list.tokens.clone(),
        _ => TokenStream::new(),
    }
}

/// Returns the path of the crate `trunkline` for the stubs of a trait, with errors at `span`. If the option has a value,
/// the stubs import this path once, under a private name.
pub(crate) fn crate_path(of_trait: &Ident, given: Option<&Path>, span: Span) -> TokenStream {
    if given.is_none() {
        return quote_spanned!(span=> ::trunkline);
    }
    let mut alias = format_ident!("__{}Crate", of_trait.unraw());
    alias.set_span(span.resolved_at(Span::call_site()));
    quote!(#alias)
}
