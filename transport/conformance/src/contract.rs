//! The items of the contract, parsed from the documentation page.
//!
//! The numbers and texts come only from this page. [`crate::COVERAGE`] names the tests of each item.

/// The documentation page.
const PAGE: &str = include_str!("../../../docs/book/src/reference/xrc-contract.md");

/// An item of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clause {
    /// Number, such as `A5`.
    pub id: &'static str,
    /// Statement of the item, which is one sentence.
    pub text: &'static str,
}

/// Returns all items in the order of the page.
pub fn clauses() -> impl Iterator<Item = Clause> {
    PAGE.lines().filter_map(parse)
}

/// Parses a line of the form `**A5. The sentence.** Further text`.
fn parse(line: &'static str) -> Option<Clause> {
    let (head, _) = line.strip_prefix("**")?.split_once("**")?;
    let (id, text) = head.split_once(". ")?;
    let (section, number) = id.split_at_checked(1)?;
    let is_id = section.bytes().all(|byte| byte.is_ascii_uppercase())
        && number.bytes().all(|byte| byte.is_ascii_digit());
    is_id.then_some(Clause { id, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_parsed_into_distinct_items() {
        let all: Vec<Clause> = clauses().collect();
        assert_eq!(all.len(), 131);
        assert_eq!(all[4], Clause { id: "A5", text: "The outcome of an open follows this table." });
        assert!(all.iter().any(|clause| clause.id == "L"));
        for (index, clause) in all.iter().enumerate() {
            assert!(
                all[..index].iter().all(|other| other.id != clause.id),
                "{} is on the page twice",
                clause.id
            );
        }
    }
}
