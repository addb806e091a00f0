//! Parser for the output of callgrind.
//!
//! The format is defined in valgrind's manual, "Callgrind Format Specification". The parser reads the instructions of
//! each function by source file, so that inlined code is attributed to the file that contains it. It also reads the cost
//! of the calls from each caller to a function.

use std::collections::BTreeMap;

/// A function, identified by its index in [`Profile::functions`].
pub(crate) type FunctionId = usize;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Function {
    /// Demangled name of the function.
    pub(crate) name: String,
    /// Source file of the function; empty if callgrind does not report it.
    pub(crate) file: String,
    /// Instructions in the function itself, by source file.
    pub(crate) own: BTreeMap<String, u64>,
    /// Inclusive instructions in calls to the function, by caller.
    pub(crate) callers: BTreeMap<FunctionId, u64>,
}

/// All functions in the output of callgrind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) functions: Vec<Function>,
}

impl Profile {
    /// Parses a profile.
    ///
    /// # Errors
    /// Returns an error with the first line that does not conform to the format.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader::default();
        for (number, line) in text.lines().enumerate() {
            reader.line(line).map_err(|why| format!("line {}: {why}: {line:?}", number + 1))?;
        }
        match reader.has_events {
            true => Ok(reader.profile),
            false => Err("there is no line `events:`".to_owned()),
        }
    }
}

/// State of the parser after the lines read so far.
#[derive(Default)]
struct Reader {
    profile: Profile,
    ids: BTreeMap<(String, String), FunctionId>,
    /// Names of files and functions, by number.
    files: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
    has_events: bool,
    /// Function and file to which the following lines belong.
    current: Option<FunctionId>,
    home: String,
    file: String,
    called_name: String,
    called_file: Option<String>,
    /// Called function to which the cost on the next line belongs.
    called: Option<FunctionId>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if let Some((key, value)) = line.split_once('=') {
            return self.assignment(key, value);
        }
        if let Some((key, value)) = line.split_once(':') {
            if key == "events" {
                self.has_events = true;
                let is_instructions = value.split_whitespace().next() == Some("Ir");
                return is_instructions.then_some(()).ok_or("the first event is not Ir");
            }
            return Ok(());
        }
        self.cost(line)
    }

    fn assignment(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "fl" => {
                self.home = full_name(&mut self.files, value)?;
                self.file.clone_from(&self.home);
            }
            "fi" | "fe" => self.file = full_name(&mut self.files, value)?,
            "fn" => {
                let name = full_name(&mut self.names, value)?;
                self.current = Some(self.function(name, self.home.clone()));
                self.file.clone_from(&self.home);
            }
            "cfl" | "cfi" => self.called_file = Some(full_name(&mut self.files, value)?),
            "cfn" => self.called_name = full_name(&mut self.names, value)?,
            "calls" => {
                let file = self.called_file.take().unwrap_or_else(|| self.file.clone());
                self.called = Some(self.function(self.called_name.clone(), file));
            }
            // Ignore object names and jumps. Only the assembler listing uses jumps.
            _ => {}
        }
        Ok(())
    }

    /// Parses a line that contains positions and costs.
    fn cost(&mut self, line: &str) -> Result<(), &'static str> {
        let mut words = line.split_whitespace();
        let position = words.next().ok_or("empty")?;
        if !position.trim_start_matches(['+', '-', '*']).chars().all(|digit| digit.is_ascii_digit()) {
            return Err("no position");
        }
        // Callgrind omits zero costs at the end of a line.
        let cost = words.next().unwrap_or("0").parse::<u64>().map_err(|_| "no cost")?;
        let current = self.current.ok_or("a cost without a function")?;
        match self.called.take() {
            Some(called) => {
                *self.profile.functions[called].callers.entry(current).or_default() += cost;
            }
            None => *self.profile.functions[current].own.entry(self.file.clone()).or_default() += cost,
        }
        Ok(())
    }

    fn function(&mut self, name: String, file: String) -> FunctionId {
        let functions = &mut self.profile.functions;
        *self.ids.entry((name.clone(), file.clone())).or_insert_with(|| {
            functions.push(Function { name, file, ..Function::default() });
            functions.len() - 1
        })
    }
}

/// Returns the name in `(number) name`, or the name that an earlier line defined for this number. An unknown name is
/// `???`.
fn full_name(known: &mut BTreeMap<String, String>, value: &str) -> Result<String, &'static str> {
    let name = match value.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        None => value.to_owned(),
        Some((number, "")) => known.get(number).cloned().ok_or("a number that has no name yet")?,
        Some((number, name)) => {
            let name = name.trim_start().to_owned();
            known.insert(number.to_owned(), name.clone());
            name
        }
    };
    Ok(if name == "???" { String::new() } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile in which a caller, with inlined code from another file, calls a function from both files.
    const SMALL: &str = "\
# callgrind format
version: 1
cmd:  program with a = sign
positions: line
events: Ir Dr
summary: 45

ob=(1) /bin/program
fl=(1) /tree/a.rs
fn=(1) a::outer
10 5 1
+2 3
fi=(2) /core/b.rs
-1 7
fe=(1)
* 1
cfn=(2) a::inner
calls=2 30
11 20
cfi=(3) /libc/c.c
cfn=(3) memcpy
calls=4 1
12 9

fl=(1)
fn=(2)
30 16

fl=(3)
fn=(3)
1 13
";

    fn function<'a>(profile: &'a Profile, name: &str) -> &'a Function {
        profile.functions.iter().find(|function| function.name == name).unwrap()
    }

    #[test]
    fn instructions_are_counted_by_function_file_and_caller() {
        let profile = Profile::parse(SMALL).unwrap();
        let outer = function(&profile, "a::outer");
        assert_eq!(outer.file, "/tree/a.rs");
        assert_eq!(outer.own, [("/core/b.rs".to_owned(), 7), ("/tree/a.rs".to_owned(), 9)].into());
        assert!(outer.callers.is_empty());
        let (inner, copy) = (function(&profile, "a::inner"), function(&profile, "memcpy"));
        assert_eq!((inner.file.as_str(), copy.file.as_str()), ("/tree/a.rs", "/libc/c.c"));
        assert_eq!(inner.callers, [(0, 20)].into());
        assert_eq!(copy.callers, [(0, 9)].into());
        assert_eq!((inner.own["/tree/a.rs"], copy.own["/libc/c.c"]), (16, 13));
    }

    #[test]
    fn malformed_profile_is_refused_with_line() {
        let refused = |text: &str| Profile::parse(text).unwrap_err();
        assert!(refused("").contains("events"));
        assert!(refused("events: Dr Ir\n").contains("the first event is not Ir"));
        assert!(refused("events: Ir\n1 2\n").starts_with("line 2: a cost without a function"));
        assert!(refused("events: Ir\nfl=(1) a\nfn=(1) f\nx 2\n").contains("no position"));
        assert!(refused("events: Ir\nfl=(1) a\nfn=(1) f\n1 x\n").contains("no cost"));
        assert!(refused("events: Ir\nfl=(7)\n").contains("no name yet"));
    }
}
