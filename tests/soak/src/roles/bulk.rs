//! Two processes with a bulk connection, either of which may die.
//!
//! ```text
//! producer ─ messages, frames lent by grant or mapped; the number determines the contents ─► consumer: as expected?
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use memferry::{CallError, Client, Failure};
use memferry_bulk::{
    ConnectError, Content, FinishError, Listener, Options, PullReason, ReceiveError, Receiver, SendError,
    Sender, SharedFrame, connect,
};
use memferry_conformance::noise;
use memferry_service::protocol::RefusalKind;

use crate::output::{Progress, Stop, finding};
use crate::random::Random;

/// How long a call may take.
const PATIENCE: Option<Duration> = Some(super::PATIENCE);
/// The socket of the consumer, in the shared directory.
const SOCKET: &str = "bulk";
/// Bytes of a lent frame.
const FRAME: u64 = 256 << 10;
/// How long the producer tries to connect.
const SEARCH: Duration = Duration::from_secs(20);

/// How long a consumer waits for a producer. Another consumer may have replaced its socket.
const FOUND: Duration = Duration::from_secs(5);

/// Why the connection is over. A lost peer is nobody's fault.
enum Over {
    Peer,
    Stop(Stop),
}

impl<T: Into<Stop>> From<T> for Over {
    fn from(stop: T) -> Self {
        Self::Stop(stop.into())
    }
}

impl From<SendError> for Over {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Closed | SendError::PeerLost => Self::Peer,
            SendError::Grant(error) => Self::Stop(error.into()),
            SendError::Descriptor(_) => Self::Stop(Stop::Refused("own", error.to_string())),
            _ => Self::Stop(Stop::Finding(error.to_string())),
        }
    }
}

fn ignore_lost_peer(result: Result<(), Over>) -> Result<(), Stop> {
    match result {
        Ok(()) | Err(Over::Peer) => Ok(()),
        Err(Over::Stop(stop)) => Err(stop),
    }
}

fn connect_failure(error: ConnectError) -> Over {
    match error {
        ConnectError::Violation(_) | ConnectError::Allocate(_) => {
            Over::Stop(Stop::Finding(error.to_string()))
        }
        ConnectError::Call(error) => Over::Stop(error.into()),
        // The other end died during the handshake, or has another service.
        _ => Over::Peer,
    }
}

/// Sends a number of messages and frames.
pub(super) fn produce(
    client: &Client,
    meeting: &Path,
    random: &mut Random,
    progress: &mut Progress,
    rounds: u64,
) -> Result<(), Stop> {
    let until = Instant::now() + SEARCH;
    loop {
        let connected = connect(meeting.join(SOCKET), client, Options::default()).map_err(connect_failure);
        match connected {
            Ok((sender, _receiver)) => {
                return ignore_lost_peer(send(client, sender, random, progress, rounds));
            }
            Err(Over::Stop(stop)) => return Err(stop),
            Err(Over::Peer) if Instant::now() > until => return Ok(()),
            Err(Over::Peer) => {
                progress.add(0, 0);
                std::thread::sleep(Duration::from_millis(20));
                client.status()?;
            }
        }
    }
}

fn send(
    client: &Client,
    mut sender: Sender,
    random: &mut Random,
    progress: &mut Progress,
    rounds: u64,
) -> Result<(), Over> {
    let frames = (0..3).map(|_| SharedFrame::allocate(client, FRAME)).collect::<Result<Vec<_>, _>>()?;
    for number in 0..rounds as u32 {
        let bytes = noise(random.below(FRAME + 1) as usize, u64::from(number));
        let length = bytes.len() as u64;
        let frame = &frames[random.below(3) as usize];
        let way = random.below(4);
        if way < 2 {
            sender.send(number, &bytes, PATIENCE)?;
        } else {
            let offset = random.below(FRAME - length + 1);
            frame.frame().write(offset, &bytes).map_err(Stop::from)?;
            let loan = match way == 2 && sender.can_grant() {
                true => sender.lend(number, frame.range(offset, length), PATIENCE)?,
                false => sender.lend_mapped(number, frame, (offset, length), PATIENCE)?,
            };
            // Until it is settled, the consumer reads the frame.
            sender.settle(loan, PATIENCE)?;
        }
        progress.add(1, length);
    }
    Ok(())
}

/// Receives what a producer sends until the connection ends. Producers connect to the newest consumer: a killed consumer leaves its
/// socket behind, on which no other can bind.
pub(super) fn consume(client: &Client, meeting: &Path, progress: &mut Progress) -> Result<(), Stop> {
    let own = meeting.join(format!("{SOCKET}-{}", std::process::id()));
    let _ = std::fs::remove_file(&own);
    let refused = |error: &dyn std::fmt::Display| Stop::Refused("own", error.to_string());
    let listener = Listener::bind(&own).map_err(|error| refused(&error))?;
    std::fs::rename(&own, meeting.join(SOCKET)).map_err(|error| refused(&error))?;
    match listener.accept(client, Options::default(), Some(FOUND)).map_err(connect_failure) {
        Ok((_sender, receiver)) => ignore_lost_peer(receive(client, receiver, progress)),
        Err(error) => ignore_lost_peer(Err(error)),
    }
}

fn receive(client: &Client, mut receiver: Receiver, progress: &mut Progress) -> Result<(), Over> {
    let own = client.frame(FRAME).alloc()?;
    let mut expected = 0;
    let mut revoked = false;
    loop {
        let lent = match receiver.receive(PATIENCE) {
            Ok(message) if message.kind != expected => {
                return Ok(finding(format!("message {} arrived instead of {expected}", message.kind))?);
            }
            Ok(message) => match message.content {
                Content::Bytes(bytes) if bytes == noise(bytes.len(), u64::from(expected)) => {
                    progress.add(1, bytes.len() as u64);
                    None
                }
                Content::Bytes(_) => return Ok(finding(format!("message {expected} has wrong contents"))?),
                Content::Range(lent) => Some(lent),
            },
            Err(ReceiveError::Closed) if revoked => {
                return Ok(finding(format!(
                    "frame {expected} was revoked by a producer that closed normally"
                ))?);
            }
            Err(ReceiveError::Closed | ReceiveError::PeerLost) => return Ok(()),
            // A grant ends with its grantor: only the loss of the peer may follow.
            Err(ReceiveError::Refused { source: CallError::Refused(refusal), .. })
                if refusal.kind == RefusalKind::Capability =>
            {
                revoked = true;
                continue;
            }
            // The grant ended with the service.
            Err(ReceiveError::Refused { source, .. }) => return Err(source.into()),
            Err(error) => return Ok(finding(error.to_string())?),
        };
        if let Some(lent) = lent {
            let mut bytes = vec![0; lent.length() as usize];
            if lent.is_mapped() {
                if let Err(error) = lent.read(0, &mut bytes) {
                    return Ok(finding(error.to_string())?);
                }
            } else if pull(client, &mut receiver, lent, &own)? {
                own.read(0, &mut bytes).map_err(Stop::from)?;
            } else {
                return Ok(());
            }
            if bytes != noise(bytes.len(), u64::from(expected)) {
                return Ok(finding(format!("the frame of message {expected} has wrong contents"))?);
            }
            progress.add(1, bytes.len() as u64);
        }
        expected += 1;
    }
}

/// Pulls a frame. Returns false if the other process revoked it.
fn pull(
    client: &Client,
    receiver: &mut Receiver,
    lent: memferry_bulk::LentFrame,
    own: &memferry::Frame,
) -> Result<bool, Over> {
    let to = own.slice(..lent.length());
    if let Err(refused) = receiver.pull(lent, &to) {
        return match refused.reason {
            PullReason::Open(error) => Err(error.into()),
            PullReason::Submit(error) => Err(error.into()),
            reason => Ok(finding(reason.to_string())?),
        };
    }
    match receiver.finish(PATIENCE) {
        Ok(_) => Ok(true),
        Err(FinishError::Failed { failure, .. }) => match failure {
            Failure::ServiceLost => Err(client.status().map_or_else(Stop::from, |_| {
                Stop::Finding("a queue was lost although its service responds".to_owned())
            }))?,
            Failure::ServiceStopping => Err(Stop::Refused("stopping", "stopping".to_owned()))?,
            Failure::Cancelled
            | Failure::Revoked { .. }
            | Failure::StaleHandle { .. }
            | Failure::UnknownHandle { .. } => Ok(false),
            // The engine process was lost and lingered. The pull may still write to the frame, which the role gives up.
            Failure::ChannelFaulted => {
                Err(Stop::Refused("lingering", "an engine process lingers".to_owned()))?
            }
            failure => Ok(finding(format!("a pull ended with {failure:?}"))?),
        },
        Err(error) => Ok(finding(error.to_string())?),
    }
}
