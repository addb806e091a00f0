//! Runs the commands in the book's second tutorial and compares their output.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, pipe};
use std::net::Ipv4Addr;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use trunkline_testkit::fresh_ip;

const PAGE: &str = include_str!("../../../docs/book/src/start/second-service.md");

/// Servers that a page starts with `&`, killed at the end of the test.
struct Jobs(Vec<Child>);

impl Jobs {
    fn kill(&mut self, job: usize) {
        self.0[job].kill().expect("a signal is sent");
        self.0[job].wait().expect("it ends");
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        for job in 0..self.0.len() {
            self.kill(job);
        }
    }
}

/// Returns the contents of the page's code blocks with one language tag.
fn blocks<'a>(page: &'a str, kind: &str) -> Vec<&'a str> {
    let start = format!("```{kind}\n");
    let blocks = page.split(&start).skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

/// Runs the commands of a shell session at `ip`, and returns the session with their output. The servers print to
/// `output`.
fn run(session: &str, ip: Ipv4Addr, jobs: &mut Jobs, output: &PipeWriter) -> String {
    let mut printed = String::new();
    for line in session.lines().filter(|line| line.starts_with("$ ")) {
        printed.extend([line, "\n"]);
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let shop = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
            command.args(arguments.iter().map(|argument| argument.replace("127.0.0.1", &ip.to_string())));
            command.env("TRUNKLINE_ADDRESS", ip.to_string());
            command
        };
        match words[..] {
            ["cargo", "build"] => {}
            ["target/debug/shop", ref arguments @ .., "&"] => {
                let stdout = output.try_clone().unwrap();
                jobs.0.push(shop(arguments).stdout(stdout).spawn().unwrap());
            }
            ["target/debug/shop", ref arguments @ ..] => {
                let output = shop(arguments).output().unwrap();
                printed += &String::from_utf8(output.stdout).unwrap();
                printed += &String::from_utf8(output.stderr).unwrap();
            }
            ["kill", job] => {
                let job: usize = job.strip_prefix('%').unwrap().parse().unwrap();
                jobs.kill(job - 1);
            }
            _ => panic!("unknown command: {line}"),
        }
    }
    printed
}

/// Returns a channel with the lines that are written to the pipe.
fn lines(reader: PipeReader) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(reader).lines().try_for_each(|line| sender.send(line.unwrap()))
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_commands_matches_page() {
        let (reader, writer) = pipe().unwrap();
        let mut jobs = Jobs(Vec::new());
        let ip = fresh_ip();
        for session in blocks(PAGE, "console") {
            assert_eq!(run(session, ip, &mut jobs, &writer), session);
        }
        let lines = lines(reader);
        for expected in blocks(PAGE, "text").concat().lines() {
            // The last line may arrive after the customer has exited.
            assert_eq!(lines.recv_timeout(Duration::from_secs(60)).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn page_has_whole_program() {
        let program = include_str!("../src/bin/shop.rs");
        let (_, program) = program.split_once("user's program\")]\n\n").unwrap();
        assert_eq!(blocks(PAGE, "rust").join("\n"), program);
    }
}
