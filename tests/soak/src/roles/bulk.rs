//! Two processes with a bulk channel between them, either of which may die.
//!
//! ```text
//! producer ─ messages, frames lent by grant or mapped; their number tells what is in them ─► consumer: is it that?
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

use crate::random::Random;
use crate::saying::{Stop, Teller, finding};

/// How long anything may take.
const PATIENCE: Option<Duration> = Some(super::PATIENCE);
/// Where the two meet.
const SOCKET: &str = "bulk";
/// Bytes of a frame that is lent.
const FRAME: u64 = 256 << 10;
/// How long the producer looks for its consumer before it gives up.
const SEARCH: Duration = Duration::from_secs(20);

/// How long a consumer waits to be found: another may have taken its place.
const FOUND: Duration = Duration::from_secs(5);

/// Neither end is at fault when the other is gone.
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

fn over(result: Result<(), Over>) -> Result<(), Stop> {
    match result {
        Ok(()) | Err(Over::Peer) => Ok(()),
        Err(Over::Stop(stop)) => Err(stop),
    }
}

fn connected(error: ConnectError) -> Over {
    match error {
        ConnectError::Violation(_) | ConnectError::Allocate(_) => {
            Over::Stop(Stop::Finding(error.to_string()))
        }
        ConnectError::Call(error) => Over::Stop(error.into()),
        // The other end died in the middle of it, or has another service.
        _ => Over::Peer,
    }
}

/// Sends so many messages and frames.
pub(super) fn produce(
    client: &Client,
    meeting: &Path,
    random: &mut Random,
    teller: &mut Teller,
    rounds: u64,
) -> Result<(), Stop> {
    let until = Instant::now() + SEARCH;
    loop {
        let met = connect(meeting.join(SOCKET), client, Options::default()).map_err(connected);
        match met {
            Ok((sender, _receiver)) => return over(send(client, sender, random, teller, rounds)),
            Err(Over::Stop(stop)) => return Err(stop),
            Err(Over::Peer) if Instant::now() > until => return Ok(()),
            Err(Over::Peer) => {
                teller.did(0, 0);
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
    teller: &mut Teller,
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
            // Until then the frame is the other end's.
            sender.settle(loan, PATIENCE)?;
        }
        teller.did(1, length);
    }
    Ok(())
}

/// Takes what producers send until there is none any more. The newest consumer is the one that producers find: those that were
/// killed leave their sockets behind, and nothing binds over these.
pub(super) fn consume(client: &Client, meeting: &Path, teller: &mut Teller) -> Result<(), Stop> {
    let own = meeting.join(format!("{SOCKET}-{}", std::process::id()));
    let _ = std::fs::remove_file(&own);
    let refused = |error: &dyn std::fmt::Display| Stop::Refused("own", error.to_string());
    let listener = Listener::bind(&own).map_err(|error| refused(&error))?;
    std::fs::rename(&own, meeting.join(SOCKET)).map_err(|error| refused(&error))?;
    match listener.accept(client, Options::default(), Some(FOUND)).map_err(connected) {
        Ok((_sender, receiver)) => over(receive(client, receiver, teller)),
        Err(error) => over(Err(error)),
    }
}

fn receive(client: &Client, mut receiver: Receiver, teller: &mut Teller) -> Result<(), Over> {
    let own = client.frame(FRAME).alloc()?;
    let mut due = 0;
    let mut taken_back = false;
    loop {
        let lent = match receiver.receive(PATIENCE) {
            Ok(message) if message.kind != due => {
                return Ok(finding(format!("message {} came where {due} was due", message.kind))?);
            }
            Ok(message) => match message.content {
                Content::Bytes(bytes) if bytes == noise(bytes.len(), u64::from(due)) => {
                    teller.did(1, bytes.len() as u64);
                    None
                }
                Content::Bytes(_) => return Ok(finding(format!("message {due} is not what was sent"))?),
                Content::Range(lent) => Some(lent),
            },
            Err(ReceiveError::Closed) if taken_back => {
                return Ok(finding(format!("lent {due} was taken back by a producer that ended well"))?);
            }
            Err(ReceiveError::Closed | ReceiveError::PeerLost) => return Ok(()),
            // A grant ends with its grantor: nothing may follow but the news that he is lost.
            Err(ReceiveError::Refused { source: CallError::Refused(refusal), .. })
                if refusal.kind == RefusalKind::Capability =>
            {
                taken_back = true;
                continue;
            }
            // What it lent ended with the service.
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
            if bytes != noise(bytes.len(), u64::from(due)) {
                return Ok(finding(format!("the frame of message {due} is not what was lent"))?);
            }
            teller.did(1, bytes.len() as u64);
        }
        due += 1;
    }
}

/// Has the engine bring it; false when the other process took it away.
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
                Stop::Finding("a queue was lost though its service answers".to_owned())
            }))?,
            Failure::ServiceStopping => Err(Stop::Refused("stopping", "stopping".to_owned()))?,
            Failure::Cancelled
            | Failure::Revoked { .. }
            | Failure::StaleHandle { .. }
            | Failure::UnknownHandle { .. } => Ok(false),
            failure => Ok(finding(format!("pulled: {failure:?}"))?),
        },
        Err(error) => Ok(finding(error.to_string())?),
    }
}
