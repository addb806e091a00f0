//! The members of a mix: parsing and order of their calls.

use crate::sizes::{Sizes, written};
use std::fmt;
use std::str::FromStr;

/// Limits on the number of members and on a weight.
const MOST_MEMBERS: usize = 16;
const MOST_WEIGHT: u32 = 10_000;
/// Step of the order: a prime larger than any sum of weights, hence coprime to each.
const STEP: u64 = 982_451_653;

/// One member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) size: usize,
    pub(super) one_way: bool,
    pub(super) weight: u32,
}

/// All members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mix(pub(super) Vec<Member>);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let members = text.split(',').map(str::parse).collect::<Result<Vec<Member>, _>>()?;
        if members.len() > MOST_MEMBERS {
            return Err(format!("a mix has at most {MOST_MEMBERS} members"));
        }
        Ok(Self(members))
    }
}

impl FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("invalid member `{text}`: expected SIZE:WEIGHT, such as 64:90 or 64K/oneway:9");
        let (what, weight) = text.split_once(':').ok_or_else(wrong)?;
        let weight = weight.parse().ok().filter(|weight| (1..=MOST_WEIGHT).contains(weight));
        let weight = weight.ok_or_else(|| format!("{}, with a weight of 1 to {MOST_WEIGHT}", wrong()))?;
        let (size, one_way) = match what.split_once('/') {
            Some((size, "oneway")) => (size, true),
            Some(_) => return Err(wrong()),
            None => (what, false),
        };
        match size.parse::<Sizes>()?.0[..] {
            [size] => Ok(Self { size, one_way, weight }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.one_way { "/oneway" } else { "" };
        write!(f, "{}{kind}:{}", written(self.size), self.weight)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, member) in self.0.iter().enumerate() {
            write!(f, "{}{member}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Returns the member of the call with this number. In any cycle of calls, as long as the sum of the weights, each member occurs as
/// often as its weight says, spread out.
pub(super) fn member(members: &[Member], call: u64) -> usize {
    let sum = members.iter().map(|member| u64::from(member.weight)).sum::<u64>().max(1);
    let mut place = call % sum * STEP % sum;
    let holds = |member: &Member| {
        let holds = place < u64::from(member.weight);
        place = place.saturating_sub(u64::from(member.weight));
        holds
    };
    members.iter().position(holds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_and_written() {
        let mix = "64:90,64K/oneway:9,1M:1".parse::<Mix>().unwrap();
        assert_eq!(mix.0[1], Member { size: 65536, one_way: true, weight: 9 });
        assert_eq!(mix.to_string(), "64:90,64K/oneway:9,1M:1");
        for wrong in ["", "64", "64:", "64:0", "64:10001", "64/twoway:1", "65M:1", "64:1,", "1..4:1"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
        assert!(["1:1"; 17].join(",").parse::<Mix>().unwrap_err().contains("at most"));
    }

    #[test]
    fn each_member_has_its_share_spread_out() {
        let mix = "1:90,2:9,3:1".parse::<Mix>().unwrap().0;
        let calls = (0..200).map(|call| member(&mix, call)).collect::<Vec<_>>();
        for half in calls.chunks(100) {
            let of = |member| half.iter().filter(|at| **at == member).count();
            assert_eq!([of(0), of(1), of(2)], [90, 9, 1]);
        }
        let pairs = calls.windows(4).filter(|four| four.iter().all(|at| *at == 1)).count();
        assert_eq!(pairs, 0, "{calls:?}");
    }
}
