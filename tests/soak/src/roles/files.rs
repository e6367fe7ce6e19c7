//! A client of the file server: reads and writes one file and checks its contents across restarts of the server.
//!
//! ```text
//! write, read, sync ─► server ─► file      killed: answered writes are there, each byte of an unanswered one may be
//! ```

use std::time::Duration;

use memferry_ninep::codec::Request;
use memferry_ninep::{Client, ClientError};

use super::Part;
use crate::output::{Progress, Stop, finding};
use crate::random::Random;

/// The socket of the file server, in the shared directory.
pub(super) const SOCKET: &str = "files";
const MESSAGE: u32 = (64 << 10) + 24;
const LONGEST: usize = 2 << 20;
/// The fid of the file.
const FILE: u32 = 1;

/// Works for a number of rounds, with as many connections as needed.
pub(super) fn session(
    part: &Part,
    random: &mut Random,
    progress: &mut Progress,
    rounds: u64,
) -> Result<(), Stop> {
    // Process ids repeat within an hour, seeds do not.
    let name = format!("file-{:016x}", part.seed);
    let mut bytes = Vec::new();
    let mut unanswered = None;
    let mut done = 0;
    let mut created = false;
    while done < rounds {
        let attached = Client::unix(&part.meeting.join(SOCKET))
            .map_err(ClientError::from)
            .and_then(|client| client.attach(MESSAGE, "/"));
        let mut over = match attached {
            Ok(client) => {
                let mut open = Open { client, bytes: &mut bytes, unanswered: &mut unanswered };
                let opened = open.open(&name, created);
                created |= opened.is_ok();
                opened
                    .and_then(|()| open.check(progress))
                    .and_then(|()| open.work(random, progress, &mut done, rounds))
            }
            Err(error) => Err(error.into()),
        };
        if matches!(over, Err(Over::Gone)) && !created {
            over = Ok(());
        }
        match over {
            Ok(()) => {}
            Err(Over::Gone) => {
                progress.add(0, 0);
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Over::Stop(stop)) => return Err(stop),
        }
    }
    Ok(())
}

enum Over {
    Gone,
    Stop(Stop),
}

impl From<ClientError> for Over {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Connection(_) => Self::Gone,
            error => Self::Stop(Stop::Finding(error.to_string())),
        }
    }
}

/// The open file and a model of its contents.
struct Open<'a> {
    client: Client,
    bytes: &'a mut Vec<u8>,
    /// A write without an answer: offset and bytes.
    unanswered: &'a mut Option<(usize, Vec<u8>)>,
}

impl Open<'_> {
    fn open(&mut self, name: &str, created: bool) -> Result<(), Over> {
        match self.client.walk(FILE, name) {
            Ok(_) => return Ok(self.client.open(FILE, 2)?),
            Err(ClientError::Refused(errno)) if created => {
                return finding(format!("{name} does not exist any more: {errno}")).map_err(Over::Stop);
            }
            Err(ClientError::Refused(_)) => {}
            // For example, the server died in between.
            Err(error) => return Err(error.into()),
        }
        self.client.walk(FILE, "")?;
        let name = name.as_bytes().into();
        self.client.call(&Request::Lcreate { fid: FILE, name, flags: 2, mode: 0o644, gid: 0 })?;
        Ok(())
    }

    /// Compares the whole file with the model.
    fn check(&mut self, progress: &mut Progress) -> Result<(), Over> {
        let mut found = Vec::new();
        while self.client.read(FILE, found.len() as u64, u32::MAX, &mut found)? > 0 {}
        if let Some((at, written)) = self.unanswered.take() {
            let end = (at + written.len()).max(self.bytes.len()).min(found.len());
            self.bytes.resize(end.max(self.bytes.len()), 0);
            for (index, byte) in written.iter().enumerate() {
                let place = at + index;
                if found.get(place) == Some(byte) {
                    self.bytes[place] = *byte;
                }
            }
        }
        if found != *self.bytes {
            let at = (0..found.len().min(self.bytes.len())).find(|at| found[*at] != self.bytes[*at]);
            let has = found.len();
            let expected = self.bytes.len();
            let what = format!("a file of {has} bytes, {expected} expected, differs from byte {at:?}");
            return Err(Over::Stop(Stop::Finding(what)));
        }
        progress.add(1, found.len() as u64);
        Ok(())
    }

    fn work(
        &mut self,
        random: &mut Random,
        progress: &mut Progress,
        done: &mut u64,
        rounds: u64,
    ) -> Result<(), Over> {
        while *done < rounds {
            *done += 1;
            match random.below(10) {
                0 => self.check(progress)?,
                1 => drop(self.client.call(&Request::Fsync { fid: FILE, datasync: random.below(2) as u32 })?),
                2..6 => self.read(random, progress)?,
                _ => self.write(random, progress)?,
            }
        }
        self.check(progress)
    }

    fn read(&mut self, random: &mut Random, progress: &mut Progress) -> Result<(), Over> {
        let offset = random.below(self.bytes.len() as u64 + 1) as usize;
        let count = random.between(1, u64::from(MESSAGE)) as u32;
        let mut found = Vec::new();
        let count_read = self.client.read(FILE, offset as u64, count, &mut found)?;
        let rest = &self.bytes[offset..];
        if count_read == 0 && !rest.is_empty() || !rest.starts_with(&found) {
            return Err(Over::Stop(Stop::Finding(format!("{count_read} bytes read at {offset} are wrong"))));
        }
        progress.add(1, count_read as u64);
        Ok(())
    }

    fn write(&mut self, random: &mut Random, progress: &mut Progress) -> Result<(), Over> {
        let length = random.between(1, u64::from(MESSAGE) - 24) as usize;
        let offset = random.below((self.bytes.len() + 1).min(LONGEST) as u64) as usize;
        let data = memferry_conformance::noise(length, random.next());
        *self.unanswered = Some((offset, data.clone()));
        let count = self.client.write(FILE, offset as u64, &data)? as usize;
        *self.unanswered = None;
        if count != length {
            return Err(Over::Stop(Stop::Finding(format!("{count} of {length} bytes were written"))));
        }
        self.bytes.resize(self.bytes.len().max(offset + length), 0);
        self.bytes[offset..offset + length].copy_from_slice(&data);
        progress.add(1, length as u64);
        Ok(())
    }
}
