//! Grants memory to any client and revokes the grant; afterwards no other client may read or write it.
//!
//! ```text
//! frame: margin | granted range | margin ─ grant ─► token in a file ─► borrowers
//!        revoke ─► margins are unchanged; granted for reading: changed now, and no borrower may see that;
//!                  granted for writing: nothing changes any more
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{CallError, Client, GrantToken, Grantee, Rights};
use memferry_conformance::noise;

use super::PATIENCE;
use crate::output::{Progress, Stop, finding, print_line};
use crate::random::Random;

/// Bytes before and after the granted range.
pub(super) const MARGIN: u64 = 4097;
/// Bytes of the longest granted range.
const LONGEST: u64 = 300_000;

/// The directory of the tokens of one service; tokens are valid for that service only.
pub(super) fn lends(meeting: &Path, service: u32) -> std::path::PathBuf {
    meeting.join(format!("lends-{service}"))
}

/// Revokes a grant. An engine process that keeps a request of a grantee can delay this for a little over four times the
/// engine's `stall-ms`, and until the process has ended (docs/engines.md). On a busy machine that is longer than one call waits.
pub(super) fn revoke(client: &Client, token: GrantToken) -> Result<(), CallError> {
    let since = Instant::now();
    loop {
        match client.revoke(token) {
            Err(CallError::RevocationPending { .. }) if since.elapsed() < PATIENCE => print_line("pending"),
            ended => return ended,
        }
    }
}

pub(super) fn session(
    client: &Client,
    meeting: &Path,
    random: &mut Random,
    progress: &mut Progress,
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
        revoke(client, grant.token())?;
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
            // A borrower that still reads would see this.
            frame.write(offset, &vec![0xa5; length as usize])?;
        }
        let kept = read()?;
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        if read()? != kept {
            return finding("memory changed after its grant was revoked");
        }
        progress.add(1, length);
    }
    Ok(())
}
