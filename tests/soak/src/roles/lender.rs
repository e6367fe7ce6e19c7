//! Grants memory to whoever takes it, and takes it back: afterwards nobody else reads or writes there.
//!
//! ```text
//! frame: margin | what is granted | margin ─ grant ─► token in a file ─► borrowers
//!        revoke ─► margins are as they were; to be read: changed now, and no borrower sees that;
//!                  to be written: nothing changes any more
//! ```

use std::path::Path;
use std::time::Duration;

use memferry::{Client, Grantee, Rights};
use memferry_conformance::noise;

use crate::random::Random;
use crate::saying::{Stop, Teller, finding};

/// Bytes before and after what is granted.
pub(super) const MARGIN: u64 = 4097;
/// The longest that is granted.
const LONGEST: u64 = 300_000;

/// Where borrowers of a service look; tokens of one mean nothing to another.
pub(super) fn lends(meeting: &Path, service: u32) -> std::path::PathBuf {
    meeting.join(format!("lends-{service}"))
}

pub(super) fn session(
    client: &Client,
    meeting: &Path,
    random: &mut Random,
    teller: &mut Teller,
    rounds: u64,
) -> Result<(), Stop> {
    let directory = lends(meeting, client.status()?.process);
    let failed = |error: std::io::Error| Stop::Refused("own", error.to_string());
    std::fs::create_dir_all(&directory).map_err(failed)?;
    let own = std::process::id();
    for number in 0..rounds {
        let length = random.between(1, LONGEST);
        let frame = client.frame(length + 2 * MARGIN).alloc()?;
        let seed = random.next();
        let bytes = noise(frame.length() as usize, seed);
        frame.write(0, &bytes)?;
        let write = random.once_in(2);
        let offset = MARGIN;
        let rights = if write { Rights::READ | Rights::WRITE } else { Rights::READ };
        let user = Grantee::User(rustix::process::geteuid().as_raw());
        let grant = client.grant(frame.slice(offset..offset + length), rights, user)?;
        let lent = format!("{} {length} {} {seed}\n", grant.token().to_raw(), u8::from(write));
        let made = directory.join(format!(".{own}-{number}"));
        let path = directory.join(format!("{own}-{number}"));
        std::fs::write(&made, lent).map_err(failed)?;
        std::fs::rename(&made, &path).map_err(failed)?;
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        let _ = std::fs::remove_file(&path);
        grant.revoke()?;
        let read = || -> Result<Vec<u8>, Stop> {
            let mut found = vec![0; bytes.len()];
            frame.read(0, &mut found)?;
            Ok(found)
        };
        let found = read()?;
        let granted = offset as usize..(offset + length) as usize;
        let margins_stay =
            found[..granted.start] == bytes[..granted.start] && found[granted.end..] == bytes[granted.end..];
        if !margins_stay || !write && found != bytes {
            return finding(format!(
                "memory that was not granted for writing changed ({length} bytes, {rights:?})"
            ));
        }
        if !write {
            // What a borrower reads from now on would be this.
            frame.write(offset, &vec![0xa5; length as usize])?;
        }
        let kept = read()?;
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        if read()? != kept {
            return finding("memory changed after its grant was revoked");
        }
        teller.did(1, length);
    }
    Ok(())
}
