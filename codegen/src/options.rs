//! The arguments of the attribute: `name = "..."`, `version = N`, `accepts = M..=N`, `codec = Type`.

use crate::errors::Errors;
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::{Attribute, Ident, LitInt, LitStr, Meta, Token, Type};

/// The options that there are, for the text of an error.
const ALL: &str = "there are `name = \"...\"`, `version = N`, `accepts = M..=N` and `codec = Type`";

/// The parsed arguments of the attribute.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Name on the wire; the trait's name if `None`.
    pub(crate) name: Option<LitStr>,
    /// Version of the schema; 1 if `None`.
    pub(crate) version: Option<u32>,
    /// Versions that one side can do with; only the schema's own if `None`.
    pub(crate) accepts: Option<Accepts>,
    /// Type of the codec; bincode if `None`.
    pub(crate) codec: Option<Type>,
}

/// A range of versions.
#[derive(Debug, Clone)]
pub(crate) struct Accepts {
    pub(crate) oldest: u32,
    newest: u32,
    at: Span,
}

impl Accepts {
    /// Most versions before the newest one: their number has one byte on the wire.
    const MOST: u32 = 255;

    /// The range ends with the version of the schema.
    pub(crate) fn check(&self, version: u32, errors: &mut Errors) {
        let Self { oldest, newest, at } = *self;
        let text = if newest != version {
            format!(
                "the versions that are accepted have to end with this one: `version = {version}, accepts = {}..={version}`",
                oldest.min(version)
            )
        } else if oldest > newest {
            format!("this range is empty; the older version comes first: `accepts = {newest}..={oldest}`")
        } else if newest - oldest > Self::MOST {
            format!("at most {} versions before this one can be accepted", Self::MOST)
        } else {
            return;
        };
        errors.push(syn::Error::new(at, text));
    }
}

impl Options {
    /// The options that can be read; the others are `errors`.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let parser = |input: ParseStream<'_>| {
            let mut options = Self::default();
            let mut seen = Vec::new();
            while !input.is_empty() {
                if let Err(error) = options.one(input, &mut seen) {
                    errors.push(error);
                    // The next option may be right, and so may the trait be.
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

    /// Parses one option.
    fn one(&mut self, input: ParseStream<'_>, seen: &mut Vec<Ident>) -> syn::Result<()> {
        let key: Ident = input
            .parse()
            .map_err(|error| syn::Error::new(error.span(), format!("this is not an option; {ALL}")))?;
        input.parse::<Token![=]>()?;
        match key.to_string().as_str() {
            "name" => self.name = Some(value(input, "a name in quotes: `name = \"...\"`")?),
            "version" => self.version = Some(version(input)?),
            "accepts" => self.accepts = Some(accepts(input)?),
            "codec" => {
                self.codec = Some(value(input, "the type of a codec: `codec = trunkline::codec::Bincode`")?)
            }
            other => return Err(syn::Error::new(key.span(), format!("unknown option `{other}`; {ALL}"))),
        }
        if seen.contains(&key) {
            return Err(syn::Error::new(key.span(), format!("`{key}` is given twice")));
        }
        seen.push(key);
        Ok(())
    }
}

/// The value of an option, or an error that names what it should be.
fn value<T: Parse>(input: ParseStream<'_>, what: &str) -> syn::Result<T> {
    let at = input.span();
    input.parse().map_err(|_| syn::Error::new(at, format!("this has to be {what}")))
}

fn version(input: ParseStream<'_>) -> syn::Result<u32> {
    const WHAT: &str = "a version, a number from 0 to 4294967295: `version = 2`";
    let at: Span = input.span();
    value::<LitInt>(input, WHAT)?
        .base10_parse()
        .map_err(|_| syn::Error::new(at, format!("this has to be {WHAT}")))
}

fn accepts(input: ParseStream<'_>) -> syn::Result<Accepts> {
    let at = input.span();
    let oldest = version(input)?;
    if input.parse::<Token![..=]>().is_err() {
        return Err(syn::Error::new(
            at,
            "this has to be a range of versions: `version = 3, accepts = 2..=3`",
        ));
    }
    Ok(Accepts { oldest, newest: version(input)?, at })
}

/// The options of an attribute in a source text.
pub(crate) fn of(attribute: &Attribute) -> TokenStream {
    match &attribute.meta {
        Meta::List(list) => list.tokens.clone(),
        _ => TokenStream::new(),
    }
}
