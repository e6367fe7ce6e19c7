//! The source of a copy: the data of a regular file without its holes, or a stream.
//!
//! ```text
//! regular file ─ SEEK_DATA, SEEK_HOLE ─► pieces with their offsets; holes are skipped
//! pipe, device, file of /proc ─ only if asked ─► pieces one after the other, until the end or a signal
//! ```

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use crate::interrupt::Interrupt;
use crate::{CommandError, files};

/// `f_type` of /proc (statfs(2)). The sizes of its files say nothing about their contents.
const PROC_MAGIC: u64 = 0x9fa0;

/// A file to copy from.
pub(super) struct Source {
    file: File,
    about: Metadata,
    /// Offset of the next byte to read.
    position: u64,
    kind: Kind,
    /// Whether everything was read, or a signal arrived.
    ended: bool,
}

enum Kind {
    Regular {
        /// Data reaches at least from the position to here; the end of the file is found by reading if this is `u64::MAX`.
        data_until: u64,
    },
    Stream {
        /// Made by the first read: until then, while the destination is opened for example, signals end the process.
        interrupt: Option<Interrupt>,
        interrupted: bool,
    },
}

impl Source {
    /// Opens a regular file; with `contents`, also what is none.
    pub(super) fn open(path: &Path, contents: bool) -> Result<Self, CommandError> {
        if contents && path.metadata().is_ok_and(|about| !about.is_dir()) {
            return Self::open_stream(path);
        }
        let remedy = "--copy-contents copies what it yields until its end";
        if path.metadata().is_ok_and(|about| !about.is_dir() && !about.is_file()) {
            return Err(format!("{} is not a regular file; {remedy}", path.display()).into());
        }
        let (file, about) = files::open_source(path)?;
        if !has_size(&file, &about).map_err(|error| format!("cannot read {}: {error}", path.display()))? {
            let name = path.display();
            return Err(
                format!("{name} has contents without a size, as files of /proc have; {remedy}").into()
            );
        }
        Ok(Self { file, about, position: 0, kind: Kind::Regular { data_until: 0 }, ended: false })
    }

    fn open_stream(path: &Path) -> Result<Self, CommandError> {
        let failed = |error: io::Error| format!("cannot read {}: {error}", path.display());
        // Waits until a pipe has a writer.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NOCTTY.bits() as i32)
            .open(path)
            .map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if about.is_file() && has_size(&file, &about).map_err(failed)? {
            return Ok(Self {
                file,
                about,
                position: 0,
                kind: Kind::Regular { data_until: 0 },
                ended: false,
            });
        }
        // A read that waits for data could not be interrupted. Poll waits instead.
        rustix::fs::fcntl_setfl(&file, OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let kind = Kind::Stream { interrupt: None, interrupted: false };
        Ok(Self { file, about, position: 0, kind, ended: false })
    }

    pub(super) fn about(&self) -> &Metadata {
        &self.about
    }

    /// The expected length; `None` for a stream.
    pub(super) fn expected(&self) -> Option<u64> {
        matches!(self.kind, Kind::Regular { .. }).then(|| self.about.len())
    }

    /// The file, if it is regular and nothing was read yet.
    pub(super) fn regular(&self) -> Option<&File> {
        (matches!(self.kind, Kind::Regular { .. }) && self.position == 0).then_some(&self.file)
    }

    pub(super) fn was_interrupted(&self) -> bool {
        matches!(self.kind, Kind::Stream { interrupted: true, .. })
    }

    /// The length of the source, once everything was read.
    pub(super) fn length(&self) -> u64 {
        self.position
    }

    /// Reads the next data into `piece`. Returns its offset and length, `None` at the end.
    pub(super) fn read_piece(&mut self, piece: &mut [u8]) -> io::Result<Option<(u64, usize)>> {
        if self.ended {
            return Ok(None);
        }
        let filled = match self.kind {
            Kind::Regular { .. } => self.read_data(piece)?,
            Kind::Stream { .. } => self.read_stream(piece)?,
        };
        let at = self.position;
        self.position += filled as u64;
        Ok((filled > 0).then_some((at, filled)))
    }

    /// Moves the position to the next data and reads it. Reads less than a piece at a hole, and nothing at the end.
    fn read_data(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let Kind::Regular { data_until } = &mut self.kind else { return Ok(0) };
        if self.position >= *data_until {
            match next_data(&self.file, self.position)? {
                Next::Data(range) => {
                    self.position = range.start;
                    *data_until = range.end;
                }
                Next::End { length } => {
                    self.ended = true;
                    self.position = length;
                    return Ok(0);
                }
            }
        }
        let room = usize::try_from(*data_until - self.position).unwrap_or(usize::MAX).min(piece.len());
        let mut filled = 0;
        while filled < room {
            match self.file.read_at(&mut piece[filled..room], self.position + filled as u64) {
                // The file ends here, perhaps because it became shorter.
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Reads until the piece is full, the stream ends, or a signal arrives.
    fn read_stream(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let Kind::Stream { interrupt, interrupted } = &mut self.kind else { return Ok(0) };
        let interrupt = match interrupt {
            Some(interrupt) => interrupt,
            None => interrupt.insert(Interrupt::of_first()?),
        };
        let mut filled = 0;
        while filled < piece.len() {
            if interrupt.wait(Some(self.file.as_fd()), None)? {
                *interrupted = true;
                self.ended = true;
                break;
            }
            match self.file.read(&mut piece[filled..]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => filled += count,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// What follows a position of a regular file.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Data. The end of the file is to be found by reading if this ends at `u64::MAX`.
    Data(Range<u64>),
    /// A hole, which may be empty, to the end of the file.
    End { length: u64 },
}

/// What follows `position`, which is not behind the end.
pub(super) fn next_data(file: &File, position: u64) -> io::Result<Next> {
    next_data_by(file, position, |whence| rustix::fs::seek(file, whence))
}

fn next_data_by(
    file: &File,
    position: u64,
    seek: impl Fn(SeekFrom) -> rustix::io::Result<u64>,
) -> io::Result<Next> {
    // Before the search: what another program appends after it is data that the search did not find.
    let length = file.metadata()?.len();
    match seek(SeekFrom::Data(position)) {
        Ok(start) => {
            let hole = seek(SeekFrom::Hole(start)).ok().filter(|hole| *hole > start);
            Ok(Next::Data(start..hole.unwrap_or(u64::MAX)))
        }
        Err(Errno::NXIO) => Ok(Next::End { length: length.max(position) }),
        // The file system does not tell holes from data.
        Err(_) => Ok(Next::Data(position..u64::MAX)),
    }
}

/// Whether the size of a regular file is that of its contents. Files of /proc and the like report 0, or any number, and some
/// have no end.
fn has_size(file: &File, about: &Metadata) -> io::Result<bool> {
    if rustix::fs::fstatfs(file)?.f_type as u64 == PROC_MAGIC {
        return Ok(false);
    }
    if about.len() > 0 {
        return Ok(true);
    }
    match file.read_at(&mut [0], 0) {
        Ok(0) => Ok(true),
        // Another process may have written the file meanwhile.
        Ok(_) => Ok(file.metadata()?.len() > 0),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_appended_during_the_search_is_no_hole() {
        let path = std::env::temp_dir().join(format!("memferry-source-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all_at(b"data", 0).unwrap();
        let found = next_data_by(&file, 4, |whence| {
            let found = rustix::fs::seek(&file, whence);
            file.write_all_at(b"more", 4).unwrap();
            found
        });
        assert_eq!(found.unwrap(), Next::End { length: 4 });
        assert!(matches!(next_data(&file, 4).unwrap(), Next::Data(range) if range.start == 4));
        std::fs::remove_file(path).unwrap();
    }
}
