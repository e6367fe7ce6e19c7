//! The configuration file as users use it: `config check`, `config default`, and `serve --config`.
//!
//! ```text
//! file ─► check: no mistakes, or each with file, line and remedy
//!      └► serve: applies the file, flags override it
//! ```

mod harness;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use harness::{Service, assert_moves_bytes, fresh_directory};
use memferry::Client;

/// A directory with a file, removed with its test.
struct File(PathBuf);

impl File {
    fn new(bytes: impl AsRef<[u8]>) -> Self {
        let file = Self(fresh_directory());
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn path(&self) -> PathBuf {
        self.0.join("memferry.toml")
    }

    fn text(&self) -> String {
        self.path().display().to_string()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn memferry(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_memferry")).args(arguments).output().unwrap();
    assert!(matches!(output.status.code(), Some(0..=2)), "{output:?}");
    output
}

fn errors(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_default_file_is_valid() {
    let output = memferry(&["config", "default"]);
    assert!(output.status.success());
    let file = File::new(&output.stdout);
    let check = memferry(&["config", "check", &file.text()]);
    assert_eq!(String::from_utf8(check.stdout).unwrap(), format!("{}: no mistakes\n", file.text()));
    Service::start(&["--config", &file.text()]).assert_serves();
}

#[test]
fn flags_override_the_file() {
    let socket = fresh_directory().join("of-the-file");
    let settings = format!(
        "[service]\nsocket = \"{}\"\nmode = \"600\"\nworkers = 2\nchannels = 3\npolicy = \"exclusive\"\n[quotas]\nsessions = 2\n",
        socket.display()
    );
    let file = File::new(settings);
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
    command.args(["serve", "--config", &file.text(), "--channels", "5"]);
    let mut child = command.env("MEMFERRY_LOG", "off").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("listening on {}\n", socket.display()));
    let client = Client::connect(&socket).unwrap();
    let status = client.status().unwrap();
    assert_eq!(
        (status.workers.len(), status.workers[0].channels, status.policy.as_str()),
        (2, 5, "exclusive")
    );
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let _second = Client::connect(&socket).unwrap();
    assert!(Client::connect(&socket).err().unwrap().to_string().contains("quota of 2 sessions"));
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
}

#[test]
fn mistakes_name_file_line_and_remedy() {
    let file = File::new("\u{feff}[service]\r\nworker = 2\r\n\r\nchunk = 3\r\n[quotes]\r\n");
    let name = file.text();
    let expected = format!(
        "memferry: {name}:2: [service] has no option 'worker'; did you mean 'workers'?\n\
         {name}:4: 'chunk' is 3, it has to be from 64 to 2^30\n\
         {name}:5: there is no section 'quotes'; did you mean [quotas]?\n"
    );
    assert_eq!(errors(&memferry(&["config", "check", &name])), expected);
    assert_eq!(errors(&memferry(&["serve", "--config", &name])), expected);
}

#[test]
fn other_files_are_refused_with_a_message() {
    let latin = File::new(b"[service]\n# caf\xe9\n");
    let message = errors(&memferry(&["config", "check", &latin.text()]));
    assert!(message.contains(":2: this is not UTF-8"), "{message}");
    let long = File::new(vec![b'\n'; (1 << 20) + 1]);
    let directory = latin.0.display().to_string();
    for (path, expected) in [
        (directory.as_str(), "is a directory"),
        ("/nonexistent/memferry.toml", "No such file"),
        ("/dev/zero", "not a regular file"),
        (&long.text(), "it has 1048577 bytes"),
    ] {
        for arguments in [["config", "check", path], ["serve", "--config", path]] {
            let message = errors(&memferry(&arguments));
            assert!(message.contains(expected) && message.contains(path), "{message}");
        }
    }
    let both = memferry(&["serve", "--config", &latin.text(), "--no-config"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn an_empty_file_is_valid() {
    for text in ["", "\u{feff}", "\r\n"] {
        let file = File::new(text);
        assert!(memferry(&["config", "check", &file.text()]).status.success(), "{text:?}");
    }
}

#[test]
fn invalid_options_leave_no_files() {
    let directory = fresh_directory();
    let socket = directory.join("s").display().to_string();
    for (option, value) in [("--workers", "0"), ("--channels", "1025"), ("--quota-waiting", "1048577")] {
        let message = errors(&memferry(&["serve", "--no-config", "--socket", &socket, option, value]));
        assert!(message.contains("it has to be from"), "{message}");
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    std::fs::remove_dir(&directory).unwrap();
}

/// Runs `memferry copy` through the embedded engine, with one environment variable.
fn with(variable: &str, value: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
    command.env(variable, value);
    command
}

fn copy_with(variable: &str, value: &str, directory: &File) -> Output {
    let [from, to] = ["memferry.toml", "copy"].map(|name| directory.0.join(name));
    with(variable, value).args(["copy", "--through-engine"]).args([from, to]).output().unwrap()
}

#[test]
fn invalid_kernels_and_profiles_are_refused() {
    let file = File::new("cpu = 3\n");
    let message = errors(&copy_with("MEMFERRY_KERNELS", "sse9", &file));
    assert!(message.contains("choose one of: portable"), "{message}");
    let message = errors(&copy_with("MEMFERRY_PROFILE", &file.text(), &file));
    assert!(message.contains("run `memferry tune` again") && message.contains("line 1"), "{message}");
    assert!(!file.0.join("copy").exists());
    let message =
        errors(&with("MEMFERRY_PROFILE", &file.text()).args(["tune", "--dry-run"]).output().unwrap());
    assert!(message.contains("delete it") && message.lines().count() == 1, "{message}");
    // Sooner or later the engine would have refused it.
    let message = errors(&with("MEMFERRY_KERNELS", "sse9").args(["tune", "--dry-run"]).output().unwrap());
    assert!(
        message.contains("cannot measure requests run inline") && message.lines().count() == 1,
        "{message}"
    );
    for (variable, value) in
        [("MEMFERRY_KERNELS", "portable"), ("MEMFERRY_PROFILE", ""), ("MEMFERRY_PROFILE", "/no")]
    {
        let copied = copy_with(variable, value, &file);
        assert!(copied.status.success(), "{variable}={value}: {copied:?}");
    }
}

#[test]
fn a_measured_profile_can_be_loaded() {
    let file = File::new("not a profile yet");
    // The machine of a test is seldom quiet.
    let tuned = memferry(&["tune", "--force", "--to", &file.text()]);
    assert!(tuned.status.success(), "{tuned:?}");
    let table = String::from_utf8(tuned.stdout).unwrap();
    assert!(table.contains("all copies bypass the caches from") && table.contains(&file.text()), "{table}");
    assert_eq!(table.matches(" measurements agree").count(), 8, "{table}");
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(text.starts_with("# What `memferry tune` measured") && text.contains("far_ticks = "), "{text}");
    assert!(copy_with("MEMFERRY_PROFILE", &file.text(), &file).status.success());
    let message = errors(&memferry(&["tune", "--to", "/proc/no/profile"]));
    assert!(message.contains("/proc/no/profile"), "{message}");
    let folder = file.path().with_extension("new");
    let message = errors(&memferry(&["tune", "--to", folder.join("profile").to_str().unwrap()]));
    assert!(message.contains("create it first") && !folder.exists(), "{message}");
}

#[test]
fn a_running_service_changes_its_policy() {
    let service = Service::start(&["--workers=2", "--policy=weighted", "--class-weights=1,1,9"]);
    let socket = service.socket.display().to_string();
    let policy = |arguments: &[&str]| memferry(&[&["policy", "--socket", &socket], arguments].concat());
    let message = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(message(policy(&[])), "weighted, low 1, normal 1, high 9\n");
    let priority =
        message(policy(&["priority", "--slice-us=100", "--period-us=400", "--low-policy=rate-limit"]));
    assert_eq!(
        priority,
        "priority, only the high class for 100µs of every 400µs\n\
         class low: rate-limit, 1000000000 bytes per second for each user, 16777216 at once\n"
    );
    assert_moves_bytes(&service.client());
    assert_eq!(service.client().status().unwrap().policy, "priority");
    for (wrong, message) in [
        (&["--slice-us=400"][..], "shorter than the period"),
        (&["deadline", "--capacity=0"], "the capacity is zero"),
        (&["fairest"], "there is no policy 'fairest'"),
        (&["--user-weight=x"], "such as 1000=3"),
    ] {
        let errors = errors(&policy(wrong));
        assert!(errors.contains(message), "{wrong:?}: {errors}");
    }
    let json: serde_json::Value = serde_json::from_str(&message(policy(&["--json"]))).unwrap();
    assert_eq!((&json["kind"], &json["class_weights"][2]), (&"priority".into(), &9.into()));
    assert_eq!((&json["slice_us"], &json["period_us"]), (&100.into(), &400.into()));
    assert!(json.get("slice").is_none() && json.get("period").is_none(), "{json}");
    for kind in memferry::PolicyKind::ALL.map(memferry::PolicyKind::name) {
        assert!(message(policy(&[kind, "--low-policy=none"])).starts_with(kind));
        assert_moves_bytes(&service.client());
    }
}
