//! The arguments of the attribute: `name = "..."`, `version = N`.

use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Ident, LitInt, LitStr, Meta, Token};

/// The parsed arguments of the attribute.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Name on the wire; the trait's name if `None`.
    pub(crate) name: Option<LitStr>,
    /// Version of the schema; 1 if `None`.
    pub(crate) version: Option<LitInt>,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            let twice = match key.to_string().as_str() {
                "name" => options.name.replace(input.parse()?).is_some(),
                "version" => options.version.replace(input.parse()?).is_some(),
                other => {
                    let text =
                        format!("unknown option `{other}`; there are `name = \"...\"` and `version = N`");
                    return Err(syn::Error::new(key.span(), text));
                }
            };
            if twice {
                return Err(syn::Error::new(key.span(), format!("`{key}` is given twice")));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

/// The options of an attribute in a source text.
pub(crate) fn of(attribute: &Attribute) -> syn::Result<Options> {
    match &attribute.meta {
        Meta::Path(_) => Ok(Options::default()),
        _ => attribute.parse_args(),
    }
}
