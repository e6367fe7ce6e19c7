//! Names that try to leave the export, by every known way, are refused.

use std::os::unix::fs::symlink;

use rustix::fs::inotify;

use super::*;
use crate::codec::{Change, change};

struct Tree {
    outside: PathBuf,
    export: Export,
}

impl Tree {
    /// An export with a sibling that holds a secret.
    fn new(name: &str) -> Self {
        let outside = std::env::temp_dir().join(format!("memferry-export-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&outside);
        std::fs::create_dir_all(outside.join("export/sub")).unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        let export = Export::open(&outside.join("export"), false, false).unwrap();
        Self { outside, export }
    }

    fn root(&self) -> Rc<Node> {
        self.export.root(&budget(100)).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.outside);
    }
}

fn budget(nodes: usize) -> Budget {
    Budget::new(nodes, Arc::default(), 1000)
}

#[test]
fn the_parent_of_the_root_is_the_root() {
    let tree = Tree::new("parent");
    let root = tree.root();
    assert_eq!(root.walk(b"..").unwrap().id(), root.id());
    let sub = root.walk(b"sub").unwrap();
    assert_eq!(sub.walk(b"..").unwrap().id(), root.id());
    // After it was moved out of the export, ".." still leads to the root.
    std::fs::rename(tree.outside.join("export/sub"), tree.outside.join("moved")).unwrap();
    assert_eq!(sub.walk(b"..").unwrap().id(), root.id());
    assert_eq!(sub.walk(b"secret").unwrap_err(), Errno::NOENT);
}

#[test]
fn names_are_single_names() {
    let tree = Tree::new("names");
    let root = tree.root();
    assert_eq!(root.walk(b".").unwrap().id(), root.id());
    for name in [&b"../secret"[..], b"/etc/passwd", b"sub/..", b"a\0b"] {
        assert_eq!(root.walk(name).unwrap_err(), Errno::INVAL, "{name:?}");
        assert!(root.create(name, OFlags::RDWR, 0o600).is_err());
        assert_eq!(root.make_directory(&tree.export, name, 0o700), Err(Errno::INVAL));
        assert_eq!(root.rename(b"sub", &root, name), Err(Errno::INVAL));
        assert_eq!(root.unlink(name, false), Err(Errno::INVAL));
    }
    assert_eq!(root.walk(b"").unwrap_err(), Errno::NOENT);
    assert_eq!(root.walk(&[b'x'; 256]).unwrap_err(), Errno::NAMETOOLONG);
    assert_eq!(root.make_directory(&tree.export, b"..", 0o700), Err(Errno::INVAL));
}

#[test]
fn links_are_never_followed() {
    let tree = Tree::new("links");
    for (name, target) in
        [("file", "../secret"), ("folder", ".."), ("absolute", "/etc"), ("proc", "/proc/self/root")]
    {
        symlink(target, tree.outside.join("export").join(name)).unwrap();
    }
    let root = tree.root();
    for name in [&b"file"[..], b"folder", b"absolute", b"proc"] {
        let link = root.walk(name).unwrap();
        assert_eq!(link.kind(), FileType::Symlink);
        assert_eq!(link.open(OFlags::RDONLY).unwrap_err(), Errno::LOOP);
        assert_eq!(link.walk(b"secret").unwrap_err(), Errno::NOTDIR);
        let change = Change { valid: change::SIZE, ..Change::default() };
        assert!(link.change(&change).is_err());
        assert_eq!(root.create(name, OFlags::RDWR, 0o600).unwrap_err(), Errno::LOOP);
    }
    assert_eq!(root.walk(b"file").unwrap().read_link().unwrap(), b"../secret");
    assert_eq!(std::fs::read(tree.outside.join("secret")).unwrap(), b"secret");
}

#[test]
fn special_files_are_never_opened() {
    let tree = Tree::new("special");
    let root = tree.root();
    assert_eq!(root.make_special(&tree.export, b"pipe", libc::S_IFIFO | 0o600), Err(Errno::PERM));
    rustix::fs::mknodat(root.descriptor(), "pipe", FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let pipe = root.walk(b"pipe").unwrap();
    assert_eq!(pipe.open(OFlags::RDONLY).unwrap_err(), Errno::PERM);
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, tree.outside.join("export/pipe"), inotify::WatchFlags::OPEN).unwrap();
    for flags in [OFlags::RDWR, OFlags::RDONLY, OFlags::WRONLY | OFlags::TRUNC] {
        assert_eq!(root.create(b"pipe", flags, 0o600).unwrap_err(), Errno::PERM);
    }
    assert_eq!(rustix::io::read(&watch, &mut [0_u8; 64]), Err(Errno::AGAIN), "it was never opened");
    assert_eq!(root.create(b"sub", OFlags::RDONLY, 0o600).unwrap_err(), Errno::ISDIR);
    assert_eq!(root.walk(b"sub").unwrap().open(OFlags::RDWR).unwrap_err(), Errno::ISDIR);
    // GNU tools open directories with these flags.
    let unfollowed = allowed_flags(0o600_000).unwrap();
    assert!(unfollowed.contains(OFlags::NOFOLLOW | OFlags::DIRECTORY));
    root.walk(b"sub").unwrap().open(unfollowed).unwrap();
    for device in [libc::S_IFCHR, libc::S_IFBLK] {
        assert_eq!(root.make_special(&tree.export, b"device", device | 0o600), Err(Errno::PERM));
    }
}

#[test]
fn a_node_keeps_its_file_across_renames() {
    let tree = Tree::new("rename");
    let root = tree.root();
    let (node, _file) = root.create(b"a", OFlags::RDWR, 0o4755).unwrap();
    let mode = node.attributes(&tree.export, 4096).unwrap().mode;
    assert_eq!(mode & 0o7000, 0, "set-user-ID is refused");
    root.rename(b"a", &root, b"b").unwrap();
    assert_eq!(node.attributes(&tree.export, 4096).unwrap().links, 1);
    std::fs::write(tree.outside.join("export/a"), "another").unwrap();
    assert_eq!(node.remove(), Err(Errno::NOENT), "its name refers to another file");
    assert_eq!(root.walk(b"b").unwrap().remove(), Ok(()));
    assert_eq!(root.remove(), Err(Errno::BUSY));
}

#[test]
fn create_opens_existing_files_without_excl() {
    let tree = Tree::new("create");
    let root = tree.root();
    let (made, file) = root.create(b"file", OFlags::RDWR, 0o600).unwrap();
    rustix::io::write(&file, b"text").unwrap();
    let (found, _) = root.create(b"file", OFlags::RDONLY, 0o644).unwrap();
    let attributes = found.attributes(&tree.export, 4096).unwrap();
    assert_eq!((found.id(), attributes.size, attributes.mode & 0o777), (made.id(), 4, 0o600));
    assert_eq!(root.create(b"file", OFlags::RDWR | OFlags::EXCL, 0o600).unwrap_err(), Errno::EXIST);
    root.create(b"file", OFlags::RDWR | OFlags::TRUNC, 0o600).unwrap();
    assert_eq!(found.attributes(&tree.export, 4096).unwrap().size, 0);
}

#[test]
fn owner_u32_max_is_refused() {
    let tree = Tree::new("owner");
    let (file, _) = tree.root().create(b"file", OFlags::RDWR, 0o600).unwrap();
    for valid in [change::UID, change::GID] {
        let change = Change { valid, uid: u32::MAX, gid: u32::MAX, ..Change::default() };
        assert_eq!(file.change(&change), Err(Errno::INVAL));
    }
}

#[test]
fn nodes_are_counted_against_the_budget() {
    let tree = Tree::new("budget");
    let budget = budget(3);
    let root = tree.export.root(&budget).unwrap();
    let nodes: Vec<_> = (0..2).map(|_| root.walk(b"sub").unwrap()).collect();
    assert_eq!(root.walk(b"sub").unwrap_err(), Errno::MFILE);
    drop(nodes);
    assert!(root.walk(b"sub").is_ok());
}

#[test]
fn flags_use_the_protocol_s_numbers() {
    assert_eq!(allowed_flags(0o2 | 0o1000), Ok(OFlags::RDWR | OFlags::TRUNC));
    assert_eq!(allowed_flags(0o40000), Ok(OFlags::RDONLY), "the engine chooses O_DIRECT");
    assert_eq!(allowed_flags(3), Err(Errno::INVAL));
}
