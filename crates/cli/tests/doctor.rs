//! `memferry doctor` on recorded machines, on folders that nobody expects, and on this machine.
//!
//! ```text
//! doctor/NAME.report ─► memferry doctor --root ─► doctor/NAME.expected
//! the same as files in a folder ─► the same text
//! ```
//!
//! `MEMFERRY_WRITE_DOCTOR=1` writes the expected texts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut reports: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|found| found == "report")).collect();
    reports.sort();
    assert!(reports.len() > 10, "{reports:?}");
    reports
}

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/doctor/{name}.report"))
}

fn doctor(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
    command.arg("doctor").arg("--root").arg(root);
    command
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(root: &Path) -> Value {
    serde_json::from_str(&text(doctor(root).arg("--json").output().unwrap())).unwrap()
}

/// A folder removed with its test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("memferry-doctor-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn recorded_machines_get_the_expected_advice() {
    let writes = std::env::var_os("MEMFERRY_WRITE_DOCTOR").is_some();
    for report in recordings() {
        let found = text(doctor(&report).output().unwrap());
        let expected = report.with_extension("expected");
        if writes {
            fs::write(&expected, &found).unwrap();
        }
        let kept = fs::read_to_string(&expected).unwrap_or_default();
        assert_eq!(found, kept, "{}: MEMFERRY_WRITE_DOCTOR=1 writes it", report.display());
    }
}

#[test]
fn recorded_machines_get_valid_json() {
    for report in recordings() {
        let value = json(&report);
        let engines = value["engines"].as_array().unwrap();
        let count = |state: &str| engines.iter().filter(|engine| engine["state"] == state).count() as u64;
        assert_eq!(value["usable"], count("usable"), "{}", report.display());
        assert_eq!(value["need_steps"], count("needs-steps"), "{}", report.display());
        for engine in engines {
            let has_steps = engine["steps"].as_array().unwrap().iter().any(|step| step["optional"] == false);
            assert_eq!(engine["state"] == "needs-steps", has_steps, "{engine}");
        }
    }
}

/// Commands are copied into a shell of root: nothing that was read may get there but plain names.
#[test]
fn hostile_values_reach_no_command() {
    let value = json(&recording("hostile"));
    let shown = text(doctor(&recording("hostile")).output().unwrap());
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let engines = value["engines"].as_array().unwrap();
    let steps = engines.iter().flat_map(|engine| engine["steps"].as_array().unwrap());
    let commands: Vec<String> = steps.map(|step| step["commands"].to_string()).collect();
    assert!(commands.iter().any(|commands| commands.contains("0000:6a:02.0")), "{commands:?}");
    for found in commands {
        assert!(
            !found.contains("reboot #") && !found.contains("$(") && !found.contains("; reboot"),
            "{found}"
        );
    }
}

/// A mode is printed: a report whose mode is anything else than digits is refused.
#[test]
fn hostile_modes_are_refused() {
    let place = Place::new();
    let report = place.0.join("report");
    let text = fs::read_to_string(recording("dsa-closed")).unwrap();
    let hostile = text.replace("\"mode\":\"0600\"", "\"mode\":\"0600\\u001b[2J\"");
    assert_ne!(hostile, text);
    fs::write(&report, hostile).unwrap();
    let output = doctor(&report).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("line ") && !said.contains('\u{1b}'), "{output:?}");
}

/// Commands go to the shell of root on machines that nobody here has seen: what takes something says from whom, they overwrite
/// no file but the doctor's own, and where a machine is unsafe or a device is somebody else's there are none.
#[test]
fn commands_take_nothing_from_others() {
    let own = [
        "70-memferry-vfio.rules",
        "70-memferry-module.rules",
        "70-memferry-wq",
        "doctor.conf",
        "grub.d/memferry.cfg",
    ];
    for report in recordings() {
        let engines = json(&report)["engines"].as_array().unwrap().clone();
        for engine in &engines {
            for step in engine["steps"].as_array().unwrap() {
                let commands: Vec<&str> = step["commands"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|command| command.as_str().unwrap())
                    .collect();
                for command in &commands {
                    let is_etc = command.contains("tee /etc/");
                    assert!(
                        !is_etc || own.iter().any(|name| command.contains(name)),
                        "{}: {command}",
                        report.display()
                    );
                    assert!(
                        !command.contains('*') || command.ends_with(".deb"),
                        "{}: {command}",
                        report.display()
                    );
                    // The sentence that says who loses what.
                    let takes = command.ends_with("unbind") || command.contains("disable-device");
                    let why = step["why"].as_str().unwrap();
                    assert!(
                        !takes || why.contains("loses") || why.contains("forgets"),
                        "{}: {command}",
                        report.display()
                    );
                }
                let kind = step["kind"].as_str().unwrap();
                if ["unsafe-kernel", "halted", "others-node", "others-queue", "vfio"].contains(&kind) {
                    let is_harmless = |command: &&str| command.starts_with("sudo dmesg");
                    assert!(commands.iter().all(is_harmless), "{}: {commands:?}", report.display());
                }
                if kind == "unsafe-kernel" {
                    let others = engine["steps"].as_array().unwrap();
                    // Installing the program opens nothing.
                    let mut others = others.iter().filter(|step| step["kind"] != "no-program");
                    let opens = others.any(|step| step["commands"].to_string().contains("dsa"));
                    assert!(!opens, "{}: {engine}", report.display());
                }
            }
        }
    }
}

/// Makes the files that a report describes. Nodes become ordinary files.
fn laid_out(report: &Path) -> Place {
    let place = Place::new();
    let text = fs::read_to_string(report).unwrap();
    let path_of = |path: &str| {
        let path = place.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let mut parts = line.splitn(3, ' ');
        let kind = parts.next().unwrap();
        let path = parts.next().unwrap();
        let value: Value = serde_json::from_str(parts.next().unwrap()).unwrap();
        match (kind, &value) {
            ("text", Value::String(content)) => fs::write(path_of(path), format!("{content}\n")).unwrap(),
            // Links to folders keep their last part, and lead where a folder is.
            ("link", Value::String(target)) => {
                let made = path_of(path);
                if !made.exists() {
                    symlink(target, made).unwrap();
                }
            }
            ("names", Value::Array(names)) => {
                for name in names {
                    let entry = path_of(&format!("{path}/{}", name.as_str().unwrap()));
                    if !entry.exists() && fs::symlink_metadata(&entry).is_err() {
                        fs::create_dir_all(entry).unwrap();
                    }
                }
            }
            ("node", Value::Object(node)) if node["kind"] == "directory" => {
                fs::create_dir_all(path_of(path)).unwrap();
            }
            ("node", Value::Object(_)) => fs::write(path_of(path), "").unwrap(),
            _ => {}
        }
    }
    place
}

#[test]
fn files_get_the_same_advice_as_their_report() {
    // In these no permission matters, which a test cannot set for other users, and no link leads through another.
    for name in ["ioat-vfio-no-iommu", "ioat-unbound", "nothing"] {
        let place = laid_out(&recording(name));
        assert_eq!(json(&place.0)["engines"], json(&recording(name))["engines"], "{name}");
    }
}

#[test]
fn reports_can_be_examined_again_and_are_not_overwritten() {
    let place = Place::new();
    let report = place.0.join("report");
    let first = text(doctor(&recording("dsa-no-queue")).arg("--report").arg(&report).output().unwrap());
    assert_eq!(text(doctor(&report).output().unwrap()), first);
    let again = doctor(&recording("nothing")).arg("--report").arg(&report).output().unwrap();
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("cannot write the report"), "{again:?}");
    assert!(fs::read_to_string(&report).unwrap().contains("dsa0"));
}

#[test]
fn a_part_of_a_report_is_removed() {
    let place = Place::new();
    let report = place.0.join("report");
    // No file may have a byte, as on a full disk.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_memferry")]);
    limited.arg("doctor").arg("--root").arg(recording("nothing")).arg("--report").arg(&report);
    let output = limited.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write the report"), "{output:?}");
    assert!(!output.status.success() && !report.exists());
}

/// A comment about a line is not the line, and the rest of an administrator's file stays out of reports.
#[test]
fn drop_ins_are_read_by_their_lines() {
    let folder = "etc/systemd/system/memferry-engine-dsa@.service.d";
    for (text, has_it) in [
        ("[Service]\n# not AmbientCapabilities=CAP_SYS_RAWIO\nEnvironment=KEY=s3cret\n", false),
        ("[Service]\nAmbientCapabilities=CAP_SYS_RAWIO\nEnvironment=KEY=s3cret\n", true),
    ] {
        let place = laid_out(&recording("dsa-no-rawio"));
        // The link that the layout cannot make, because a folder has its place.
        let pci = place.0.join("sys/devices/pci0000:6a/0000:6a:01.0");
        fs::create_dir_all(&pci).unwrap();
        fs::rename(place.0.join("sys/bus/dsa/devices/dsa0"), pci.join("dsa0")).unwrap();
        symlink("../../../devices/pci0000:6a/0000:6a:01.0/dsa0", place.0.join("sys/bus/dsa/devices/dsa0"))
            .unwrap();
        fs::create_dir_all(place.0.join(folder)).unwrap();
        fs::write(place.0.join(folder).join("local.conf"), text).unwrap();
        let report = place.0.join("report");
        let found = doctor(&place.0).arg("--json").arg("--report").arg(&report).output().unwrap();
        let found = self::text(found);
        assert!(found.contains("idxd") && found.contains("wq0.0"), "{found}");
        assert_eq!(found.contains("\"raw-io\""), !has_it, "{found}");
        assert!(!fs::read_to_string(report).unwrap().contains("s3cret"));
    }
}

#[test]
fn reports_leave_out_what_identifies_a_machine() {
    let place = Place::new();
    for folder in ["proc/self", "etc", "sys/bus/pci/devices"] {
        fs::create_dir_all(place.0.join(folder)).unwrap();
    }
    let secret = "s3cret";
    let write = |path: &str, text: String| fs::write(place.0.join(path), text).unwrap();
    write("proc/cmdline", format!("root=UUID={secret} intel_iommu=on hostname={secret} ip={secret}\n"));
    write("proc/cpuinfo", format!("model name\t: CPU\nSerial\t: {secret}\nflags\t: avx2\n"));
    write("proc/self/status", format!("Name:\t{secret}\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0\n"));
    write(
        "etc/passwd",
        format!("{secret}:x:1000:1000:{secret}::/bin/sh\nmemferry-engine:x:998:998:{secret}:{secret}:\n"),
    );
    write("etc/group", format!("{secret}:x:1000:{secret}\nrender:x:44:{secret},memferry-engine\n"));
    let report = place.0.join("report");
    text(doctor(&place.0).arg("--report").arg(&report).output().unwrap());
    let written = fs::read_to_string(report).unwrap();
    assert!(!written.contains(secret), "{written}");
    for kept in ["intel_iommu=on", "998:998", "\"44\"", "avx2"] {
        assert!(written.contains(kept), "{kept} in {written}");
    }
}

#[test]
fn folders_that_are_no_machines_are_refused() {
    let place = Place::new();
    let cases = [
        (place.0.clone(), "neither sys nor proc"),
        (place.0.join("none"), "No such file"),
        (PathBuf::from("/dev/zero"), "neither a folder nor a report"),
        (PathBuf::from(env!("CARGO_BIN_EXE_memferry")), "too long for a report"),
        (PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"), "first line"),
    ];
    for (root, message) in cases {
        let output = doctor(&root).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", root.display());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(message), "{said}");
    }
}

/// Unreadable, endless and circular files below a root end in advice, not in a failure.
#[test]
fn hostile_folders_are_survived() {
    let place = Place::new();
    let device = place.0.join("sys/bus/pci/devices/0000:6a:01.0");
    fs::create_dir_all(&device).unwrap();
    for (name, value) in [("vendor", "0x8086"), ("device", "0x0b25"), ("class", "0x088000")] {
        fs::write(device.join(name), value).unwrap();
    }
    symlink("driver", device.join("driver")).unwrap();
    fs::create_dir_all(place.0.join("sys/class")).unwrap();
    symlink(".", place.0.join("sys/class/dma")).unwrap();
    symlink("/dev/zero", place.0.join("sys/class/iommu")).unwrap();
    fs::create_dir_all(place.0.join("proc/self")).unwrap();
    fs::write(place.0.join("proc/cpuinfo"), vec![0xff; 3 << 20]).unwrap();
    fs::write(place.0.join("proc/cmdline"), vec![b'\n'; 5000]).unwrap();
    fs::create_dir(place.0.join("proc/self/status")).unwrap();
    let pci = place.0.join("sys/bus/pci/devices");
    for number in 0..5000 {
        fs::write(pci.join(format!("{number:04x}")), "").unwrap();
    }
    fs::create_dir_all(place.0.join("etc")).unwrap();
    fs::write(place.0.join("etc/passwd"), "memferry-engine:x:99999999999:::\n").unwrap();
    let found = json(&place.0);
    assert_eq!(found["verdict"].as_str().unwrap().split(';').next(), Some("1 engine usable now"));
    assert!(!found["unread"].as_array().unwrap().is_empty(), "{found}");
}

#[test]
fn runs_on_this_machine_as_any_user() {
    let run = |command: &mut Command| text(command.output().unwrap());
    let own = run(&mut doctor(Path::new("/")));
    assert!(own.contains("CPU") && own.lines().next().unwrap().contains("usable now"), "{own}");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Another user must be able to execute the program, which may lie in a folder of root alone.
    let place = Place::new();
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755)).unwrap();
    let copied = place.0.join("memferry");
    // Written by this process it could be "busy": a child that another test is just starting has the open file too.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_memferry")).arg(&copied).status().unwrap().success());
    let mut command = Command::new(copied);
    let other = run(command.arg("doctor").current_dir("/").uid(65534).gid(65534));
    assert!(other.lines().next().unwrap().contains("usable now"), "{other}");
}
