//! Queues in folders: files as sysfs has them, and a plain file as the work queue.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use memferry_dsa::registers::descriptor::{Descriptor, opcode};
use memferry_engine::{Mapping, Operations};

use super::*;
use crate::error::open_remedy;
use crate::linux::Linux;

/// A root with `dsa0/wq0.0`, which is dedicated and enabled.
struct Root(PathBuf);

impl Root {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("memferry-dsa-open-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let root = Self(folder);
        for (file, text) in [
            ("pasid_enabled", "1"),
            ("gen_cap", "0x40915f010f"),
            ("op_cap", "00000000,00000000,00000000,00000000,00000000,00000000,00000001,003f03ff"),
            ("wq0.0/type", "user"),
            ("wq0.0/state", "enabled"),
            ("wq0.0/mode", "dedicated"),
            ("wq0.0/size", "16"),
            ("wq0.0/threshold", "0"),
            ("wq0.0/group_id", "2"),
            ("wq0.0/max_transfer_size", "2147483648"),
            ("wq0.0/max_batch_size", "1024"),
        ] {
            root.set(file, text);
        }
        fs::create_dir_all(root.0.join("dev/dsa")).unwrap();
        fs::create_dir_all(root.0.join("sys/bus/dsa/devices/wq0.0")).unwrap();
        fs::write(root.0.join("dev/dsa/wq0.0"), [0; 4096]).unwrap();
        root
    }

    fn file(&self, file: &str) -> PathBuf {
        self.0.join("sys/bus/dsa/devices/dsa0").join(file)
    }

    fn set(&self, file: &str, text: &str) -> &Self {
        let path = self.file(file);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    fn remove(&self, file: &str) -> &Self {
        fs::remove_file(self.file(file)).unwrap();
        self
    }

    fn kernel(&self) -> Linux {
        Linux::at(self.0.clone())
    }

    fn settings(&self) -> Result<Settings, OpenError> {
        try_open(&self.kernel(), queue())
    }

    fn error(&self) -> String {
        self.settings().unwrap_err().to_string()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn queue() -> QueueName {
    "wq0.0".parse().unwrap()
}

#[test]
fn settings_are_those_of_sysfs() {
    let settings = Root::new().settings().unwrap();
    assert_eq!((settings.mode, settings.entries, settings.group), (Mode::Dedicated, 16, 2));
    assert_eq!((settings.limits.longest, settings.limits.largest_batch), (1 << 31, 1024));
    assert!(settings.limits.overlapping_moves && !settings.limits.block_on_fault);
    let expected = Operations::COPY
        | Operations::SCATTER_GATHER
        | Operations::FILL
        | Operations::COMPARE
        | Operations::CRC
        | Operations::COPY_CRC
        | Operations::DUAL_COPY;
    assert_eq!(settings.operations(), expected);
}

#[test]
fn a_shared_queue_has_its_threshold() {
    let root = Root::new();
    root.set("wq0.0/mode", "shared").set("wq0.0/threshold", "6");
    assert_eq!(root.settings().unwrap().entries, 6);
    root.set("wq0.0/threshold", "60");
    assert_eq!(root.settings().unwrap().entries, 16);
}

#[test]
fn a_queues_own_operations_restrict_it() {
    let root = Root::new();
    // No operation, move and fill, as a kernel writes it that takes batches from the set.
    root.set("wq0.0/op_config", "00000000,00000000,00000000,00000000,00000000,00000000,00000000,00000019");
    let settings = root.settings().unwrap();
    assert_eq!(settings.operations(), Operations::COPY | Operations::SCATTER_GATHER | Operations::FILL);
    assert_eq!(settings.limits.largest_batch, 0);
    root.set("wq0.0/op_config", "00000000,00000000");
    assert!(root.settings().unwrap().limits.operations.contains(opcode::BATCH), "it cannot be restricted");
}

#[test]
fn each_failure_says_what_to_do() {
    for (file, text, expected) in [
        ("wq0.0/type", "kernel", "type kernel, not user: accel-config config-wq dsa0/wq0.0 --type=user"),
        ("wq0.0/state", "disabled", "wq0.0 is disabled: accel-config enable-wq dsa0/wq0.0"),
        ("pasid_enabled", "0", "intel_iommu=on,sm_on"),
        ("wq0.0/size", "0", "--wq-size=32"),
        ("wq0.0/size", "many", "dsa0/wq0.0/size is 'many'"),
        ("wq0.0/size", "-1", "dsa0/wq0.0/size is '-1'"),
        ("wq0.0/mode", "odd", "dsa0/wq0.0/mode is 'odd'"),
        ("wq0.0/max_transfer_size", "0", "moves no memory"),
        ("wq0.0/op_config", "1", "moves no memory"),
        ("wq0.0/op_config", "zebra", "op_config is 'zebra'"),
        ("op_cap", "", "op_cap is ''"),
        ("gen_cap", "?", "gen_cap is"),
    ] {
        let root = Root::new();
        let error = root.set(file, text).error();
        assert!(error.contains(expected), "{file} = {text}: {error}");
    }
    for file in ["pasid_enabled", "op_cap", "gen_cap", "wq0.0/state", "wq0.0/max_batch_size"] {
        let root = Root::new();
        let error = root.remove(file).error();
        assert!(error.contains(file), "{file}: {error}");
    }
}

#[test]
fn a_queue_that_is_not_there_names_others() {
    let root = Root::new();
    let other = "wq0.7".parse().unwrap();
    let error = try_open(&root.kernel(), other).unwrap_err().to_string();
    assert_eq!(error, "there is no work queue wq0.7; of type user there are: wq0.0");
    root.set("wq0.0/type", "none");
    let error = try_open(&root.kernel(), other).unwrap_err().to_string();
    assert!(error.contains("this machine has none of type user: `memferry doctor`"), "{error}");
    let nowhere = Linux::at("/nonexistent".into());
    let error = try_open(&nowhere, other).unwrap_err().to_string();
    assert!(error.contains("`memferry doctor`"), "{error}");
}

#[test]
fn files_that_cannot_be_opened_have_a_remedy() {
    let root = Root::new();
    let file = root.0.join("dev/dsa/wq0.0");
    if !rustix::process::geteuid().is_root() {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
        let error = root.error();
        assert!(error.contains("chown memferry-engine /dev/dsa/wq0.0"), "{error}");
    }
    fs::remove_file(&file).unwrap();
    let error = root.error();
    assert!(error.contains("a container has to be given the file"), "{error}");
    let of = |kind: io::ErrorKind| open_remedy(queue(), &kind.into());
    assert!(of(io::ErrorKind::ResourceBusy).contains("dedicated"));
    assert!(of(io::ErrorKind::PermissionDenied).contains("chown"));
    assert!(of(io::ErrorKind::InvalidInput).contains("log"));
}

#[test]
fn a_queue_says_how_it_is_reached() {
    let root = Root::new();
    let opened = open(&root.kernel(), queue()).unwrap();
    let expected = match crate::Instructions::of_this_cpu().movdir64b {
        true => "wq0.0 (dedicated, group 2): by its portal, with MOVDIR64B; batches of up to 32",
        false => {
            "wq0.0 (dedicated, group 2): by write(), which is slower: its portal cannot be mapped: this processor has no \
             MOVDIR64B; a virtual machine has to be given the host's (QEMU: -cpu host); \
             no batches: write() takes none"
        }
    };
    assert_eq!(opened.way, expected);
}

/// A kernel that locks no memory.
struct Unlocked(Linux);

impl Kernel for Unlocked {
    type File = <Linux as Kernel>::File;

    fn attribute(&self, path: &str) -> io::Result<String> {
        self.0.attribute(path)
    }

    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        self.0.names(folder)
    }

    fn open(&self, queue: QueueName) -> io::Result<Self::File> {
        self.0.open(queue)
    }

    fn keep_present(&self, _: &Mapping) -> io::Result<()> {
        Err(io::ErrorKind::OutOfMemory.into())
    }
}

#[test]
fn records_that_are_not_locked_are_reported() {
    let root = Root::new();
    let opened = open(&Unlocked(root.kernel()), queue()).unwrap();
    let warning = opened.warning.unwrap();
    assert!(warning.starts_with("warning: wq0.0: its completion records cannot be locked"), "{warning}");
    assert!(warning.contains("out of memory") && warning.contains("LimitMEMLOCK="), "{warning}");
    assert_eq!(open(&root.kernel(), queue()).unwrap().warning, None);
}

/// A file whose portal the kernel does not map, as without CAP_SYS_RAWIO.
struct Unmappable;

struct NoPortal;

impl Portal for NoPortal {
    fn submit(&mut self, _: &Descriptor) -> Result<(), Refused> {
        Err(Refused::Closed)
    }
}

impl memferry_dsa::DescriptorFile for Unmappable {
    fn write(&mut self, bytes: &[u8; 64]) -> Result<usize, Refused> {
        Ok(bytes.len())
    }
}

impl QueueFile for Unmappable {
    type Portal = NoPortal;

    fn map(&self, _: Mode) -> Result<NoPortal, NotMapped> {
        Err(NotMapped::Refused(io::ErrorKind::PermissionDenied.into()))
    }
}

#[test]
fn without_a_portal_descriptors_are_written() {
    let settings = Root::new().settings().unwrap();
    let (mut way, said) = way(Unmappable, &settings);
    assert!(said.contains("by write()") && said.contains("CAP_SYS_RAWIO"), "{said}");
    assert!(!way.takes_batches());
    assert_eq!(way.submit(&Descriptor { words: [0; 8] }), Ok(()));
}

#[test]
fn what_is_written_is_the_descriptor() {
    let root = Root::new();
    let mut file = ByWrite(root.kernel().open(queue()).unwrap());
    file.submit(&Descriptor { words: [1, 2, 3, 4, 5, 6, 7, 8] }).unwrap();
    let bytes = fs::read(root.0.join("dev/dsa/wq0.0")).unwrap();
    let words: Vec<u64> =
        bytes[..72].chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [1, 2, 3, 4, 5, 6, 7, 8, 0]);
    // A file that takes nothing is closed.
    fs::remove_file(root.0.join("dev/dsa/wq0.0")).unwrap();
    std::os::unix::fs::symlink("/dev/full", root.0.join("dev/dsa/wq0.0")).unwrap();
    let mut full = ByWrite(root.kernel().open(queue()).unwrap());
    assert_eq!(full.submit(&Descriptor { words: [0; 8] }), Err(Refused::Closed));
}
