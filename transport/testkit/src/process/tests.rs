//! Tests of the line protocol with a child that answers, stays silent, fails or hangs.

use super::*;

const CHILD: &str = "TRUNKLINE_TESTKIT_CHILD";
const SHORT: Duration = Duration::from_millis(50);

/// Entry point of the child, which is not a test. It repeats each line in capitals, after an unrelated line.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let input = Input::open();
    print_line("READY");
    while let Some(line) = input.wait() {
        match line.as_str() {
            "fail" => std::process::exit(3),
            "quiet" => {}
            _ => print_line(&format!("noise\n{} ok=1", line.to_uppercase())),
        }
    }
}

fn start() -> Process {
    let mut command = same_test(module_path!(), "child");
    let mut process = Process::start("the child", command.env(CHILD, "1")).expect("it starts");
    process.after("READY").expect("it is ready");
    process
}

#[test]
fn answers_are_found_among_other_lines() {
    let mut process = start();
    assert_eq!(process.numbers("one").expect("numbers")["ok"], 1);
    process.tell("two").expect("it listens");
    process.tell("three").expect("it listens");
    assert_eq!(process.pick("THREE").expect("the later answer"), "ok=1");
    assert_eq!(process.after("TWO").expect("the earlier one was kept"), "ok=1");
    assert_eq!(process.find(SHORT, |line| line.starts_with("TWO")), None);
    process.finish().expect("it ends with its input");
}

#[test]
fn silent_and_ended_processes_have_different_errors() {
    let mut process = start().with_bound(SHORT);
    assert!(matches!(process.ask("quiet"), Err(ProcessError::Silent { has_ended: false, .. })));
    assert_eq!(process.wait(SHORT), None);
    process.kill().expect("it is killed");
    // The end is detected when the reading thread has run.
    let mut process = process.with_bound(BOUND);
    assert!(matches!(process.after("QUIET"), Err(ProcessError::Silent { has_ended: true, .. })));
    process.close_input();
    assert!(matches!(process.tell("one"), Err(ProcessError::InputClosed { .. })));
}

#[test]
fn failure_at_end_is_reported() {
    let mut process = start();
    process.tell("fail").expect("it listens");
    assert_eq!(process.wait(BOUND).and_then(|status| status.code()), Some(3));
    assert!(matches!(process.finish(), Err(ProcessError::Ended { status: Some(_), .. })));
}
