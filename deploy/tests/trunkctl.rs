//! Tests of the program with captures, and with an output that cannot be written.

#[cfg(test)]
mod tests {
    use nix::fcntl::{Flock, FlockArg};
    use std::fs;
    use std::io::Write;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output, Stdio};
    use std::time::{Duration, SystemTime};

    /// Returns the path of a capture of packets sent by the kernel's implementation.
    fn vector(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../transport/roce/tests/vectors").join(name)
    }

    fn trunkctl(arguments: &[&str], files: &[&Path]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_trunkctl"))
            .args(["pcap", "check"])
            .args(arguments)
            .args(files)
            .output()
            .expect("the program starts")
    }

    fn stdout(output: &Output) -> String {
        String::from_utf8(output.stdout.clone()).expect("UTF-8")
    }

    /// Creates a file that only this test uses.
    fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
        fs::write(&path, bytes).expect("a writable target directory");
        path
    }

    /// Returns the offsets and lengths of the frames in a classic pcap file.
    fn frame_starts(file: &[u8]) -> Vec<(usize, usize)> {
        let mut starts = Vec::new();
        let mut at = 24;
        while let Some(length) = file.get(at + 8..at + 12) {
            let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
            let length = usize::try_from(length).expect("small");
            starts.push((at + 16, length));
            at += 16 + length;
        }
        starts
    }

    #[test]
    fn good_captures_pass_and_every_packet_is_named() {
        let output = trunkctl(
            &["--at-least", "47"],
            &[&vector("xrc/xsrq_pingpong.pcap"), &vector("xrc/xsrq_small.pcap")],
        );
        let text = stdout(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains(" XRC_SEND_ONLY qp "), "{text}");
        assert!(text.contains(" srq 0x"), "{text}");
        assert!(text.contains(" XRC_ACKNOWLEDGE qp ") && text.contains(" ACK msn 1"), "{text}");
        assert!(text.contains("xsrq_pingpong.pcap: good: 34 RoCE packets, 0 with faults"), "{text}");
        assert!(text.lines().last().is_some_and(|line| line.starts_with("all files: good: 47 RoCE packets")));
        // Output consists of one line per packet, one per file, and one for all files.
        assert_eq!(text.lines().count(), 47 + 2 + 1);
    }

    /// Returns the exit status after the reader of standard output has closed the pipe.
    fn status_with_a_closed_pipe(files: &[&Path]) -> Option<i32> {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
        command.args(["pcap", "check"]).args(files).stdout(writer);
        let output = command.stderr(Stdio::piped()).output().expect("the program starts");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        output.status.code()
    }

    #[test]
    fn closed_pipe_does_not_fail() {
        assert_eq!(status_with_a_closed_pipe(&[&vector("xrc/xsrq_pingpong.pcap")]), Some(0));
        let broken = scratch("closed", b"no capture");
        assert_eq!(status_with_a_closed_pipe(&[&broken]), Some(1), "faults stay faults");
        let _ = fs::remove_file(broken);
    }

    #[test]
    fn connection_messages_are_named() {
        let text = stdout(&trunkctl(&[], &[&vector("xrc/xrdma_cm.pcap")]));
        let line = |what: &str| {
            text.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {text}"))
        };
        let req = line(" CM REQ XRC ");
        assert!(req.contains(" service 0x") && req.contains(" qpn 0x") && req.contains(" id 0x"), "{req}");
        assert!(line(" CM REP ").contains(" eecn 0x"));
        assert!(line(" CM RTU ").contains(" peer id 0x"));
    }

    #[test]
    fn json_output_has_numbers_of_packets_and_files() {
        let output = trunkctl(&["--json"], &[&vector("xrc/xrdma_cm.pcap")]);
        assert!(output.status.success());
        let lines: Vec<serde_json::Value> =
            stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let packets: Vec<_> = lines.iter().filter(|line| line["kind"] == "packet").collect();
        assert_eq!(packets.len(), 8);
        assert_eq!(lines.len(), 8 + 2);
        assert_eq!(lines[8]["kind"], "file");
        assert_eq!(lines[9]["kind"], "summary");
        assert_eq!(lines[9]["packets"], 8);
        let req = packets.iter().find(|packet| packet["cm"] == "REQ").expect("a REQ");
        assert_eq!((&req["transport_service_type"], &req["extended_transport"]), (&3.into(), &1.into()));
        assert_eq!((&req["opcode"], &req["opcode_name"]), (&0x64.into(), &"UD_SEND_ONLY".into()));
        assert_eq!(req["dest_qp"], 1);
        let rep = packets.iter().find(|packet| packet["cm"] == "REP").expect("a REP");
        assert!(rep["local_eecn"].as_u64().is_some_and(|eecn| eecn > 1), "{rep}");
        let send = packets.iter().find(|packet| packet["opcode"] == 0xa4).expect("an XRC SEND");
        assert!(send["xrc_srq"].as_u64().is_some(), "{send}");
    }

    #[test]
    fn flipped_bit_is_found_and_packet_named() {
        let mut file = fs::read(vector("xrc/xsrq_small.pcap")).expect("a vector");
        let (start, length) = frame_starts(&file)[4];
        file[start + length - 5] ^= 1; // the byte before the ICRC
        let path = scratch("flipped.pcap", &file);
        let output = trunkctl(&[], &[&path]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let faulty: Vec<_> = text.lines().filter(|line| line.contains(" ! ")).collect();
        assert_eq!(faulty.len(), 1, "{text}");
        assert!(faulty[0].starts_with("5 ") && faulty[0].contains("bad ICRC"), "{text}");
        let quiet = stdout(&trunkctl(&["--quiet"], &[&path]));
        assert!(quiet.contains(": 5 ") && quiet.lines().count() == 3, "{quiet}");
        let json = stdout(&trunkctl(&["--json", "--quiet"], &[&path]));
        assert!(json.contains(r#""frame":5"#) && json.contains("bad ICRC"), "{json}");
        fs::remove_file(path).expect("ours");
    }

    #[test]
    fn unknown_opcode_and_set_pad_byte_are_faults() {
        use trunkline_roce::pcap::PcapWriter;
        use trunkline_roce::wire::{IpUdp, icrc};
        let address = |text: &str| text.parse().expect("an address with its port");
        let headers = IpUdp::new(address("10.0.0.1:50000"), address("10.0.0.2:4791"));
        let mut writer = PcapWriter::new(Vec::new()).expect("memory");
        for (opcode, pad) in [(0xb5, 0), (0xa4, 7), (0xa4, 0)] {
            let mut packet =
                vec![opcode, 0x70, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1, 0, 0, 0, 2, 9, 0, 0, pad];
            icrc::append(&headers, &mut packet);
            writer.write(1, &headers, &packet).expect("memory");
        }
        let path = scratch("made.pcap", &writer.into_inner());
        let output = trunkctl(&[], &[&path]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(1));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("UNKNOWN_0xb5 ! does not parse"), "{text}");
        assert!(lines[1].contains("does not re-emit equal: first difference at byte 19"), "{text}");
        assert!(!lines[2].contains('!'), "{text}");
        fs::remove_file(path).expect("ours");
    }

    #[test]
    fn truncated_invalid_or_too_small_captures_fail() {
        let whole = fs::read(vector("xrc/xsrq_small.pcap")).expect("a vector");
        let cut = scratch("cut.pcap", &whole[..whole.len() - 7]);
        let text = scratch("text.pcap", b"this is not a capture");
        let good = vector("xrc/xsrq_small.pcap");
        for (path, why) in [(&*cut, "the file ends at byte"), (&*text, "neither pcap nor pcapng")] {
            let output = trunkctl(&["--quiet"], &[path, &good]);
            assert_eq!(output.status.code(), Some(1), "{}", path.display());
            assert!(stdout(&output).contains(why), "{}", stdout(&output));
        }
        let few = trunkctl(&["--quiet", "--at-least", "14"], &[&good]);
        assert_eq!(few.status.code(), Some(1));
        assert!(stdout(&few).contains("13 RoCE packets, at least 14 wanted"), "{}", stdout(&few));
        fs::remove_file(cut).expect("ours");
        fs::remove_file(text).expect("ours");
    }

    #[test]
    fn unreadable_file_is_named_once_with_exit_code_2() {
        let good = vector("xrc/xsrq_small.pcap");
        let folder = std::env::temp_dir();
        for (path, why) in [(Path::new("absent.pcap"), "No such file"), (&*folder, "Is a directory")] {
            let name = path.display().to_string();
            for arguments in [&[][..], &["--quiet"], &["--json"]] {
                let alone = trunkctl(arguments, &[path]);
                let error = String::from_utf8_lossy(&alone.stderr).into_owned();
                assert_eq!((alone.status.code(), stdout(&alone).as_str()), (Some(2), ""), "{error}");
                assert_eq!((error.lines().count(), error.matches(&name).count()), (1, 1), "{error}");
                assert!(error.contains(why), "{error}");
            }
            let both = trunkctl(&["--quiet"], &[path, &good]);
            let (error, text) = (String::from_utf8_lossy(&both.stderr).into_owned(), stdout(&both));
            assert_eq!((both.status.code(), error.matches(&name).count()), (Some(2), 1), "{error}");
            assert!(text.contains("13 RoCE packets") && !text.contains(&name), "{text}");
        }
    }

    #[test]
    fn standard_input_is_read() {
        let mut child = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
            .args(["pcap", "check", "--quiet", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let file = fs::read(vector("rc/rping.pcap")).expect("a vector");
        child.stdin.take().expect("piped").write_all(&file).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success());
        assert!(stdout(&output).contains("41 RoCE packets"), "{}", stdout(&output));
    }

    #[test]
    fn help_explains_output_and_options() {
        let output = Command::new(env!("CARGO_BIN_EXE_trunkctl")).args(["pcap", "check", "--help"]).output();
        let text = stdout(&output.expect("the program starts"));
        for word in ["Examples:", "How to read a line", "Exit status", "--json", "--quiet", "4791"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn lists_of_absent_runtime_directory_are_empty_and_name_directory() {
        let folder = trunkline_testkit::Folder::new().expect("a temporary directory");
        let mistyped = folder.join("mistyped");
        let nodes: &[&str] = &["nodes", "--json", "--interval-ms", "0"];
        let top: &[&str] = &["top", "--json", "-n", "1", "--interval-ms", "10"];
        let device: &[&str] = &["device", "list", "--json"];
        let lists = [(nodes, "nodes"), (device, "devices"), (&["record", "--json"], "nodes"), (top, "nodes")];
        for (arguments, list) in lists {
            let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
                .args(arguments)
                .env("TRUNKLINE_RUNTIME_DIR", &mistyped)
                .output()
                .expect("the program starts");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{error}");
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(json[list], serde_json::json!([]));
            let expected = format!(
                "{mistyped:?} does not exist: no node of this user has created it, or it was removed"
            );
            assert!(
                error.matches(&expected).count() == 1 && error.contains("TRUNKLINE_RUNTIME_DIR sets it"),
                "{error}"
            );
            assert!(!mistyped.exists());
        }
    }

    fn full() -> fs::File {
        fs::File::options().write(true).open("/dev/full").expect("the device")
    }

    #[test]
    fn failed_write_of_output_is_error() {
        let folder = trunkline_testkit::Folder::new().expect("a temporary directory");
        let nodes: &[&str] = &["nodes", "--json", "--interval-ms", "0"];
        for arguments in [nodes, &["device", "list"], &["doctor", "--no-calls"]] {
            let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
                .args(arguments)
                .env("TRUNKLINE_RUNTIME_DIR", folder.path().join("run"))
                .stdout(full())
                .output()
                .expect("the program starts");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains("cannot be written: No space left on device"), "{error}");
        }
    }

    #[test]
    fn exit_status_does_not_depend_on_standard_error() {
        let folder = trunkline_testkit::Folder::new().expect("a temporary directory");
        // The second rule decides no call, which causes a warning.
        let rule = "[[allow]]\npeers = ['local']\ncalls = ['*']\n";
        let policy = format!("{rule}{}", rule.replace("'*'", "'/s/m'"));
        fs::write(folder.join("policy.toml"), policy).expect("a writable directory");
        let allowed = ["policy", "check", "policy.toml", "--peer", "local:1", "--call", "/s/m"];
        for (arguments, status) in [
            (&allowed[..], 0),
            (&["policy", "check", "absent"], 2),
            (&["pcap", "check", "absent"], 2),
            (&["nodes", "--interval-ms", "0"], 0),
            (&["device", "list"], 0),
            (&["device", "remove", "127.0.0.1"], 1),
            (&["record", "127.0.0.1:1"], 1),
            #[cfg(feature = "identity")]
            (&["keys", "show", "absent"], 2),
        ] {
            let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
                .args(arguments)
                .current_dir(folder.path())
                .env("TRUNKLINE_RUNTIME_DIR", folder.join("run"))
                .stderr(full())
                .output()
                .expect("the program starts");
            assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        }
    }

    #[test]
    fn files_that_cannot_be_read_are_reported_in_json() {
        for (arguments, place) in [
            (&["policy", "check", "--json", "absent"][..], "/error"),
            #[cfg(feature = "identity")]
            (&["keys", "issue", "--json", "absent", "a.example"], "/error"),
            #[cfg(feature = "identity")]
            (&["keys", "show", "--json", "absent"], "/errors/0"),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
            let output = command.args(arguments).output().expect("the program starts");
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let text = json.pointer(place).and_then(serde_json::Value::as_str).unwrap_or_default();
            assert!(text.contains("absent"), "{arguments:?}: {json}");
            assert!(!output.status.success());
        }
    }

    #[test]
    fn unusable_runtime_directory_is_reported_in_json() {
        let folder = trunkline_testkit::Folder::new().expect("a temporary directory");
        let file = folder.join("file");
        fs::write(&file, "").expect("a writable directory");
        let nodes: &[&str] = &["nodes", "--json"];
        for arguments in [nodes, &["top", "--json", "-n", "1"], &["record", "--json"]] {
            let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
                .args(arguments)
                .env("TRUNKLINE_RUNTIME_DIR", &file)
                .output()
                .expect("the program starts");
            let text = stdout(&output);
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let error = json["error"].as_str().expect("an error");
            assert!(
                error.contains("file") && String::from_utf8_lossy(&output.stderr).contains(error),
                "{text}"
            );
            assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        }
    }

    #[test]
    fn texts_of_files_are_escaped() {
        let folder = trunkline_testkit::Folder::new().expect("a temporary directory");
        let name = "a\u{1b}[31m\n\u{202e}.pcap";
        let whole = fs::read(vector("xrc/xsrq_small.pcap")).expect("a vector");
        fs::write(folder.join(name), &whole[..whole.len() - 7]).expect("a writable directory");
        fs::write(folder.join("policy\u{1b}.toml"), "[[allow]]\n\"\\u001b[31m\\u202eX\"=1").expect("a file");
        for arguments in [
            &["pcap", "check", "--quiet", name, name][..],
            &["pcap", "check", name],
            &["pcap", "check", "--json", name],
            &["pcap", "check", "absent\u{1b}\n\u{202e}"],
            &["policy", "check", "policy\u{1b}.toml"],
            &["policy", "check", "absent\u{1b}\n\u{202e}"],
            #[cfg(feature = "identity")]
            &["keys", "show", "absent\u{1b}\n\u{202e}"],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
            let output =
                command.args(arguments).current_dir(folder.path()).output().expect("the program starts");
            let text = stdout(&output) + &String::from_utf8_lossy(&output.stderr);
            let acts = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
            assert!(!text.contains(acts) && text.contains("u{1b}") | text.contains("u001b"), "{text:?}");
            assert!(!text.lines().any(|line| line.starts_with("\\u{202e}")), "{text:?}");
        }
    }

    #[test]
    fn doctor_calls_over_loopback() {
        let folder = trunkline_testkit::Folder::new().expect("a temporary directory");
        let doctor = |arguments: &[&str], directory: &Path| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
            let command = command.arg("doctor").args(arguments).env("TRUNKLINE_RUNTIME_DIR", directory);
            let output = command.env("TMPDIR", folder.path()).output().expect("the program starts");
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            (output.status.code(), json, stdout(&output))
        };
        let absent = folder.join("run");
        // A process that was killed by a signal left this folder.
        let abandoned = folder.join("trunkline-doctor-0");
        fs::create_dir_all(abandoned.join("nodes")).expect("a writable directory");
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        let directory = fs::File::open(&abandoned).expect("a directory");
        directory.set_modified(hour_ago).expect("ours");
        let running = Flock::lock(directory, FlockArg::LockExclusive).expect("a lock");
        doctor(&["--json"], &absent);
        assert!(abandoned.exists(), "its process runs");
        drop(running);
        let (status, json, text) = doctor(&["--json"], &absent);
        assert_eq!(status, Some(i32::from(json["verdict"] == "failure")), "{text}");
        let findings = json["findings"].as_array().expect("findings");
        for call in ["loopback call by UDP", "loopback call by shared memory"] {
            let found = findings.iter().find(|found| found["subject"] == call).expect(call);
            assert_eq!(
                (&found["severity"], &found["remedy"]),
                (&"ok".into(), &serde_json::Value::Null),
                "{found}"
            );
        }
        let faulty = |found: &serde_json::Value| found["severity"] == "ok" || found["remedy"].is_string();
        assert!(findings.iter().all(faulty), "{text}");
        assert_eq!(fs::read_dir(folder.path()).expect("a directory").count(), 0, "nothing is left");
        // A fault is the last finding before the verdict.
        let (status, _, text) = doctor(&["--no-calls"], &absent.join("child"));
        let lines: Vec<_> = text.lines().rev().take(2).collect();
        assert!(
            lines[0].starts_with("verdict: nodes do not run well") && lines[1].starts_with("FAILURE"),
            "{text}"
        );
        assert!(status == Some(1) && text.contains("FAILURE  runtime directory: "), "{text}");
        assert!(!text.contains(" call "), "{text}");
    }

    #[test]
    fn doctor_reports_capture_that_cannot_be_written() {
        let folder = trunkline_testkit::Folder::new().expect("a temporary directory");
        let environment = |capture: &Path| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
            let command = command.args(["doctor", "--no-calls", "--json"]).env("TRUNKLINE_PCAP", capture);
            let output = command.output().expect("the program starts");
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let findings = json["findings"].as_array().expect("findings");
            findings.iter().find(|found| found["subject"] == "environment").expect("the finding").clone()
        };
        let found = environment(&folder.join("absent/a.pcap"));
        assert_eq!(found["severity"], "failure", "{found}");
        assert_eq!(found["remedy"], "name another file in TRUNKLINE_PCAP, or unset it", "{found}");
        let file = folder.join("notes");
        fs::write(&file, "text").expect("a writable directory");
        let found = environment(&file);
        assert_eq!(found["remedy"], "remove it or choose another name", "{found}");
        assert_eq!(environment(&folder.join("a.pcap"))["severity"], "ok");
        assert_eq!(fs::read_dir(folder.path()).expect("a directory").count(), 1, "nothing is created");
    }

    #[test]
    fn policy_is_listed_checked_and_queried() {
        let folder = trunkline_testkit::Folder::new().expect("a temporary directory");
        let file = folder.join("policy.toml");
        let policy = "[[allow]]\npeers = ['spiffe://a/*', 'local']\ncalls = ['/s/*']\n\n\
             [[deny]]\npeers = ['spiffe://a/b']\ncalls = ['*']\n\n\
             [[allow]]\npeers = ['spiffe://a/b', 'local:7']\ncalls = ['/s/m']\n";
        fs::write(&file, policy).expect("a writable directory");
        let check = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
            let output = command.args(["policy", "check"]).arg(&file).args(arguments).output();
            let output = output.expect("the program starts");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), stdout(&output), error)
        };
        let (status, text, warnings) = check(&[]);
        assert_eq!((status, text.lines().count()), (Some(0), 4), "{text}");
        let rule: Vec<_> = text.lines().nth(1).expect("a rule").split_whitespace().collect();
        assert_eq!(rule, ["5", "deny", "spiffe://a/b", "*"]);
        let warning =
            "line 9: this rule decides no call; the calls that it matches are decided at lines 1, 5\n";
        assert_eq!(warnings, format!("trunkctl: warning: {warning}"));

        for (peers, call, status, verdict) in [
            (&["spiffe://a/c"][..], "/s/m", 0, "allowed by the rule at line 1"),
            (&["local:1", "spiffe://a/b"], "/s/m", 1, "denied by the rule at line 5"),
            (&["unproven"], "/s/m", 1, "denied: no rule allows it"),
        ] {
            let mut arguments = vec!["--call", call];
            peers.iter().for_each(|peer| arguments.extend(["--peer", peer]));
            let (code, text, _) = check(&arguments);
            assert_eq!((code, text.lines().last()), (Some(status), Some(verdict)), "{peers:?} {call}");
            arguments.push("--json");
            let (code, text, error) = check(&arguments);
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((code, error.as_str()), (Some(status), ""));
            assert_eq!(json["decision"]["is_allowed"], status == 0);
            assert_eq!(json["rules"][1]["peers"], serde_json::json!(["spiffe://a/*", "local"]));
            assert_eq!(json["warnings"], serde_json::json!([{ "line": 9, "decided_at": [1, 5] }]));
        }
        for (arguments, expected) in [
            (&["--peer", "local:1"][..], "--call <PATH>"),
            (&["--call", "/s/m"], "--peer <NAME>"),
            (&["--peer", "*.a", "--call", "/s/m"], "expected the name of one peer"),
            (&["--peer", "local:1", "--call", "/s/*"], "expected the path of one call"),
            (&["--peer", "local:1", "--call", "s/m"], "invalid call"),
        ] {
            let (status, _, error) = check(arguments);
            assert!(status == Some(2) && error.contains(expected), "{arguments:?}: {error}");
        }
        fs::write(&file, policy.replace("'*'", "")).expect("a writable directory");
        let (status, text, error) = check(&[]);
        let expected = format!("trunkctl: {}: line 7: `calls` is empty", file.display());
        assert!(status == Some(2) && text.is_empty() && error.starts_with(&expected), "{error}");
        fs::remove_file(&file).expect("the file");
        assert_eq!(check(&[]).0, Some(2));
    }
}
