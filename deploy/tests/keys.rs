//! Tests of `trunkctl keys`: files with their modes and contents, renewal, refusals, and the output of `show`.
#![cfg(feature = "identity")]

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
        KeyIdMethod, KeyPair, RevokedCertParams, date_time_ymd,
    };
    use serde_json::Value;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;
    use std::process::{Command, Output};
    use trunkline_testkit::{Folder, on_small_file_system};
    use trunkline_transport::identity::{Identity, Trust};

    const SPIFFE: &str = "spiffe://example.com/web";

    fn keys(arguments: &[&str], directory: &Path) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
        command.arg("keys").args(arguments).current_dir(directory).output().expect("the program starts")
    }

    /// Asserts that the command fails with this exit status, and that its output contains these texts.
    fn fails(arguments: &[&str], directory: &Path, status: i32, texts: &[&str]) {
        let output = keys(arguments, directory);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        for text in texts {
            assert!(error.contains(text), "{arguments:?}: {text}: {error}");
        }
    }

    /// Runs a command that must succeed, and returns its JSON.
    fn json(arguments: &[&str], directory: &Path) -> Value {
        let output = keys(&[arguments, &["--json"]].concat(), directory);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn authority() -> Folder {
        let folder = Folder::new().expect("a temporary directory");
        json(&["init", "ca", "--name", "Test root"], folder.path());
        folder
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("it exists").mode() & 0o777
    }

    fn entries(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    /// The other authority has the same name and a different key.
    #[test]
    fn show_reports_signature_by_authority_among_files() {
        let folder = authority();
        let folder = folder.path();
        json(&["init", "other", "--name", "Test root"], folder);
        json(&["issue", "ca", "a.example", "--out", "a"], folder);
        for (roots, is_given, text) in [
            (&["ca/root.pem"][..], Value::Bool(true), "CN=Test root: among the files given\n"),
            (&["other/root.pem"], Value::Bool(false), "CN=Test root: not among the files given\n"),
            (&[], Value::Null, "CN=Test root\n"),
        ] {
            let show = [&["show", "a.pem"], roots].concat();
            let shown = json(&show, folder);
            assert_eq!(shown["files"][0]["certificates"][0]["is_issuer_given"], is_given, "{shown}");
            let shown = String::from_utf8(keys(&show, folder).stdout).expect("UTF-8");
            assert!(shown.contains(text), "{shown}");
        }
    }

    #[test]
    fn show_verifies_limited_number_of_signatures() {
        let folder = Folder::new().expect("a temporary directory");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let base = params.clone();
        let absent = Issuer::from_params(&base, KeyPair::generate().expect("a key"));
        let (mut roots, mut others) = (String::new(), String::new());
        for number in 0..70_u64 {
            params.serial_number = Some(number.into());
            params.key_identifier_method = KeyIdMethod::PreSpecified(number.to_be_bytes().to_vec());
            roots += &params.self_signed(&key).expect("a certificate").pem();
            let mut leaf = params.clone();
            leaf.is_ca = IsCa::NoCa;
            others += &leaf.signed_by(&key, &absent).expect("a certificate").pem();
        }
        fs::write(folder.join("roots.pem"), roots).expect("a file");
        fs::write(folder.join("others.pem"), others).expect("a file");
        let output = keys(&["show", "--json", "roots.pem", "others.pem"], folder.path());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("at most 4096 signatures are verified"), "{error}");
        let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let given =
            |file: usize, number: usize| &shown["files"][file]["certificates"][number]["is_issuer_given"];
        assert!((0..70).all(|number| *given(0, number) == true), "{shown}");
        assert_eq!((given(1, 0), given(1, 69)), (&false.into(), &Value::Null));
    }

    #[test]
    fn issued_certificates_load_and_have_their_names_with_principal_first() {
        let folder = authority();
        let names = ["10.0.0.7", "Web.example.com", SPIFFE, "*.example.com", "fd00::1", "web.example.com"];
        let shown = json(&[&["issue", "ca"], &names[..], &["--out", "web"]].concat(), folder.path());
        let certificate = &shown["files"][0]["certificates"][0];
        let expected = [SPIFFE, "web.example.com", "*.example.com", "10.0.0.7", "fd00::1"];
        assert_eq!(certificate["names"], serde_json::json!(expected));
        assert_eq!(certificate["uses"], serde_json::json!(["server", "client"]));
        assert_eq!(certificate["is_ca"], false);
        assert!(certificate["days_left"].as_i64().is_some_and(|days| (89..=90).contains(&days)));
        assert_eq!(certificate["issuer"], "CN=Test root");
        assert_eq!(certificate["key_type"], "ECDSA P-256");
        assert_eq!(shown["files"][0]["key"]["matches"], true);
        let read = |name: &str| fs::read(folder.join(name)).expect("it was written");
        Identity::from_pem(&read("web.pem"), &read("web.key")).expect("an identity");
        Trust::from_pem(&read("ca/root.pem")).expect("a root");
        let root = &json(&["show", "ca/root.pem"], folder.path())["files"][0];
        assert_eq!(
            (&root["certificates"][0]["is_ca"], &root["key"]["matches"]),
            (&true.into(), &true.into())
        );

        let check = Command::new("openssl")
            .args(["verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "a.example.com"])
            .args(["-CAfile", "ca/root.pem", "web.pem"])
            .current_dir(folder.path())
            .output();
        match check {
            Ok(check) => {
                assert!(check.status.success(), "{check:?}");
                let fingerprint = Command::new("openssl")
                    .args(["x509", "-noout", "-fingerprint", "-sha256", "-in", "web.pem"])
                    .current_dir(folder.path())
                    .output()
                    .expect("openssl");
                let text = String::from_utf8_lossy(&fingerprint.stdout).into_owned();
                assert_eq!(text.trim().split('=').nth(1), certificate["sha256"].as_str());
            }
            Err(error) => eprintln!("skipped: openssl cannot be run: {error}"),
        }
    }

    #[test]
    fn keys_are_private_without_leftover_files() {
        let folder = authority();
        json(&["issue", "ca", SPIFFE], folder.path());
        let ca = folder.join("ca");
        assert_eq!(entries(&ca), ["example.com_web.key", "example.com_web.pem", "root.key", "root.pem"]);
        assert_eq!(mode(&ca), 0o700);
        for key in ["root.key", "example.com_web.key"] {
            assert_eq!(mode(&ca.join(key)), 0o600, "{key}");
        }
        fs::set_permissions(&ca, PermissionsExt::from_mode(0o755)).expect("ours");
        fails(&["init", "ca"], folder.path(), 1, &["mode 0755: expected 0700"]);
    }

    #[test]
    fn existing_files_are_not_overwritten() {
        let folder = authority();
        let ca = folder.join("ca");
        json(&["issue", "ca", "web"], folder.path());
        let files = || entries(&ca).iter().map(|name| fs::read(ca.join(name)).expect("a file")).collect();
        let before: Vec<_> = files();
        fails(&["init", "ca"], folder.path(), 1, &["root.pem exists", "never overwritten", "keys issue ca"]);
        fails(&["issue", "ca", "web"], folder.path(), 1, &["web.pem exists", "--replace", "--out"]);
        let other = ["issue", "ca", "db", "--out", "ca/web", "--replace"];
        fails(&other, folder.path(), 1, &["is of web, not of db", "remove these first"]);
        for replace in [&[][..], &["--replace"]] {
            let root = [&["issue", "ca", "root"], replace].concat();
            let text = if replace.is_empty() { "root.pem exists" } else { "root.pem is not of a node" };
            fails(&root, folder.path(), 1, &[text]);
        }
        assert_eq!(files(), before);
        let first = "other/root.pem does not exist: run `trunkctl keys init other` first";
        fails(&["issue", "other", "db"], folder.path(), 2, &[first]);
        // Only the key exists, as after a crash.
        fs::remove_file(ca.join("root.pem")).expect("ours");
        fails(&["init", "ca"], folder.path(), 1, &["root.key exists"]);
        fails(&["issue", "ca", "db"], folder.path(), 2, &["root.pem: No such file"]);
    }

    #[test]
    fn renewal_replaces_both_files_and_no_target_of_link() {
        let folder = authority();
        let web = ["issue", "ca", "web", "--out", "web", "--replace"];
        let first = json(&web, folder.path());
        fs::rename(folder.join("web.key"), folder.join("elsewhere.key")).expect("ours");
        symlink("elsewhere.key", folder.join("web.key")).expect("a link");
        let old = fs::read(folder.join("elsewhere.key")).expect("a key");
        let second = json(&web, folder.path());
        let serial = |shown: &Value| shown["files"][0]["certificates"][0]["serial"].clone();
        assert_ne!(serial(&first), serial(&second));
        assert_eq!(second["files"][0]["key"]["matches"], true);
        assert_eq!(fs::read(folder.join("elsewhere.key")).expect("a key"), old);
        assert_eq!(mode(&folder.join("web.key")), 0o600);
        assert!(fs::symlink_metadata(folder.join("web.key")).expect("a key").is_file());
    }

    #[test]
    fn names_refused_by_peers_are_not_issued() {
        let folder = authority();
        for (name, text) in [
            ("two words", "expected a DNS name, which may begin with `*.`, an IP address"),
            ("spiffe://Example.com/web", "a domain in lower case and a path"),
            ("10.0.0.7:4000", "an IP address"),
            ("*.com", "a DNS name of two labels or more"),
            ("*.10.0.0.7", "a DNS name of two labels or more"),
        ] {
            fails(&["issue", "ca", "web", name], folder.path(), 2, &[text]);
        }
        let two = ["issue", "ca", SPIFFE, "web", "spiffe://example.com/db"];
        fails(&two, folder.path(), 2, &["two SPIFFE URIs", "issue a certificate for each"]);
        let many: Vec<_> = (0..257).map(|number| format!("web{number}")).collect();
        let many: Vec<_> = ["issue", "ca"].into_iter().chain(many.iter().map(String::as_str)).collect();
        fails(&many, folder.path(), 1, &["peers would refuse the certificate: no usable name"]);
        assert_eq!(entries(&folder.join("ca")), ["root.key", "root.pem"]);
    }

    #[test]
    fn certificate_ends_with_its_root() {
        let folder = Folder::new().expect("a temporary directory");
        json(&["init", "ca", "--days", "5"], folder.path());
        let output = keys(&["issue", "ca", "web", "--json"], folder.path());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.contains("make a new authority before"), "{error}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
        let full = fs::File::options().write(true).open("/dev/full").expect("the device");
        let command = command.args(["keys", "issue", "ca", "api"]).current_dir(folder.path()).stderr(full);
        assert!(command.output().expect("the program starts").status.success());
        let end = |path| {
            let shown = json(&["show", path], folder.path());
            shown["files"][0]["certificates"][0]["not_after"].clone()
        };
        assert_eq!(end("ca/web.pem"), end("ca/root.pem"));
        // The key belongs to another authority.
        json(&["init", "other"], folder.path());
        fs::copy(folder.join("other/root.key"), folder.join("ca/root.key")).expect("ours");
        fails(&["issue", "ca", "db"], folder.path(), 1, &["root.pem with its key is no authority"]);
    }

    #[test]
    fn show_finds_faults_and_does_not_print_keys() {
        let folder = authority();
        json(&["issue", "ca", "web", "--out", "web"], folder.path());
        json(&["issue", "ca", "db", "--out", "db"], folder.path());
        let shown = &json(&["show", "web.pem"], folder.path())["files"][0];
        let keys_of =
            |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys_of(shown), ["certificates", "key", "path", "revocation_lists"]);
        let certificate = [
            "days_left",
            "faults",
            "is_ca",
            "is_issuer_given",
            "issuer",
            "key_type",
            "names",
            "not_after",
            "not_before",
            "serial",
            "sha256",
            "subject",
            "uses",
        ];
        assert_eq!(keys_of(&shown["certificates"][0]), certificate);
        // One file contains a chain and its key. The file next to it contains the key of another certificate.
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a file");
        fs::write(folder.join("web.pem"), read("web.pem") + &read("web.key")).expect("ours");
        fs::copy(folder.join("db.key"), folder.join("web.key")).expect("ours");
        let output = keys(&["show", "web.pem", "db.pem"], folder.path());
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("web.key fault: does not match") && text.contains("db.key matches"), "{text}");
        assert!(!text.contains(read("db.key").lines().nth(1).expect("a key")), "{text}");
        fails(&["show", "db.key"], folder.path(), 1, &["no certificate and no revocation list"]);
        fails(&["show", "absent.pem", "db.pem"], folder.path(), 2, &["absent.pem: No such file"]);
        fs::write(folder.join("large.pem"), vec![b'\n'; (1 << 20) + 1]).expect("ours");
        mkfifo(&folder.join("fifo"), Mode::S_IRWXU).expect("a FIFO");
        fails(&["show", "fifo"], folder.path(), 2, &["fifo: not a regular file"]);
        fails(&["show", "large.pem"], folder.path(), 2, &["large.pem: larger than 1048576 bytes"]);
    }

    #[test]
    fn bidirectional_control_character_is_escaped() {
        let folder = Folder::new().expect("a temporary directory");
        let name = "Test\u{202e}\u{1f511}root";
        json(&["init", "ca", "--name", name], folder.path());
        let shown = json(&["show", "ca/root.pem"], folder.path());
        assert_eq!(shown["files"][0]["certificates"][0]["subject"], format!("CN={name}"));
        for format in [&["show", "ca/root.pem"][..], &["show", "ca/root.pem", "--json"]] {
            let printed = String::from_utf8(keys(format, folder.path()).stdout).expect("UTF-8");
            assert!(printed.contains("202e") && !printed.contains('\u{202e}'), "{printed}");
        }
    }

    #[test]
    fn revocation_lists_are_shown_with_their_numbers_and_next_update() {
        let folder = authority();
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a file");
        let key = KeyPair::from_pem(&read("ca/root.key")).expect("a key");
        let issuer = Issuer::from_ca_cert_pem(&read("ca/root.pem"), key).expect("an authority");
        let revoked = RevokedCertParams {
            serial_number: 0xabcd_u64.into(),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2026, 2, 1),
            crl_number: 17.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&issuer).expect("a list").pem().expect("PEM");
        fs::write(folder.join("list.pem"), list).expect("ours");
        let shown = json(&["show", "list.pem"], folder.path());
        let expected = serde_json::json!([{
            "issuer": "CN=Test root", "number": "17", "revoked": ["00:ab:cd"],
            "last_update": "2026-01-01T00:00:00Z", "next_update": "2026-02-01T00:00:00Z",
        }]);
        assert_eq!(shown["files"][0]["revocation_lists"], expected);
    }

    #[test]
    fn full_disk_leaves_old_files() {
        let folder = authority();
        let small = folder.join("small");
        fs::create_dir(&small).expect("ours");
        let script = "\
            \"$0\" keys issue \"$1/../ca\" web --out \"$1/web\" && cp \"$1\"/web.* \"$1/..\" || exit 3
            cat /dev/zero >\"$1/filler\" 2>/dev/null
            \"$0\" keys issue \"$1/../ca\" web --out \"$1/web\" --replace && exit 4
            cmp \"$1/web.pem\" \"$1/../web.pem\" && cmp \"$1/web.key\" \"$1/../web.key\" && ls -A \"$1\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_trunkctl")]).arg(&small);
        let Some(mut command) = on_small_file_system(&small, 64, &command) else {
            eprintln!("skipped: this host allows no mounts in a user namespace");
            return;
        };
        let output = command.output().expect("a shell");
        let (text, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && error.contains("nothing has changed"), "{output:?}");
        assert!(text.ends_with("filler\nweb.key\nweb.pem\n"), "{text}");
    }
}
