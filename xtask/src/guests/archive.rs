//! An initial RAM disk: an archive that Linux accepts from a boot loader (cpio, "newc", uncompressed).
//!
//! ```text
//! folder ──► sorted entries, each: header of hexadecimal numbers, name, content ──► TRAILER!!!
//! ```
//!
//! All entries belong to root and have no time, so that equal folders give equal archives.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const TRAILER: &[u8] = b"TRAILER!!!";

/// The archive of a folder.
pub(crate) fn of_folder(folder: &Path) -> io::Result<Vec<u8>> {
    let mut archive = Vec::new();
    let mut number = 0;
    for path in paths(folder)? {
        number += 1;
        let name = path.strip_prefix(folder).unwrap_or(&path).as_os_str().as_bytes();
        let metadata = path.symlink_metadata()?;
        let permissions = metadata.permissions().mode() & 0o7777;
        if metadata.is_dir() {
            entry(&mut archive, number, FOLDER | permissions, name, &[]);
        } else if metadata.is_symlink() {
            let content = fs::read_link(&path)?;
            entry(&mut archive, number, LINK | 0o777, name, content.as_os_str().as_bytes());
        } else {
            entry(&mut archive, number, FILE | permissions, name, &fs::read(&path)?);
        }
    }
    entry(&mut archive, 0, 0, TRAILER, &[]);
    Ok(archive)
}

/// All paths below the folder, each folder before its contents.
fn paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut inside: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    inside.sort();
    for path in inside {
        let is_folder = path.symlink_metadata()?.is_dir();
        found.push(path.clone());
        if is_folder {
            found.extend(paths(&path)?);
        }
    }
    Ok(found)
}

fn entry(archive: &mut Vec<u8>, number: u32, mode: u32, name: &[u8], content: &[u8]) {
    let links = if mode & FOLDER == FOLDER && mode & FILE == 0 { 2 } else { 1 };
    let length = u32::try_from(content.len()).expect("files of a guest are shorter than 4 GiB");
    let name_length = u32::try_from(name.len() + 1).expect("names are short");
    // Magic, inode, mode, user, group, links, time, length, device twice, special device twice, name's length, checksum.
    let fields = [number, mode, 0, 0, links, 0, length, 0, 0, 0, 0, name_length, 0];
    archive.extend_from_slice(b"070701");
    for field in fields {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(name);
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(content);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-archive-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn an_empty_folder_is_only_the_trailer() {
        let folder = folder("empty");
        let archive = of_folder(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let header =
            format!("070701{}0000000b00000000", "00000000".repeat(4) + "00000001" + &"00000000".repeat(6));
        assert!(archive.starts_with(header.as_bytes()), "{}", String::from_utf8_lossy(&archive));
        assert_eq!(&archive[110..], b"TRAILER!!!\0\0\0\0");
    }

    #[test]
    fn files_links_and_folders_keep_their_kind() {
        let folder = folder("kinds");
        fs::create_dir(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/init"), "#!").unwrap();
        fs::set_permissions(folder.join("bin/init"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("bin/init", folder.join("link")).unwrap();
        let archive = of_folder(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let text = String::from_utf8_lossy(&archive);
        let mode = |name: &str| {
            let at = text.find(&format!("{name}\0")).unwrap();
            u32::from_str_radix(&text[at - 110 + 14..at - 110 + 22], 16).unwrap()
        };
        assert_eq!(mode("bin/init"), 0o100_755);
        assert_eq!(mode("link"), 0o120_777);
        assert_eq!(mode("bin") & 0o170_000, FOLDER);
        assert_eq!(archive.len() % 4, 0);
        assert!(text.find("bin\0").unwrap() < text.find("bin/init\0").unwrap());
    }
}
