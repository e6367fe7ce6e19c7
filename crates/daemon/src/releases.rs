//! Queues that workers have released and whose attendants do not know it yet.
//!
//! ```text
//! worker: released, many at once ─► add ─► the attendant reads its messages? ─┬─ yes: take ─► one message for many queues
//!                                                                             └─ no: again after a pause
//! ```
//!
//! A worker that was preempted may release thousands of queues at once, and an attendant that was preempted too has room for some
//! hundred messages. Nothing waits for a release, so it waits for the attendant. It has no order among other messages: a session uses
//! each queue number once.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::messages::ClientId;

/// Maximum number of queues in a message. With the longest numbers they take 10 KiB, and a message may have 16.
const MOST: usize = 2048;
/// Pause before attendants are asked again whether they keep up; it doubles while none does.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

pub(crate) struct Releases {
    /// Released queues by client. No entry is empty.
    by_client: BTreeMap<ClientId, Vec<u32>>,
    pause: Duration,
}

impl Default for Releases {
    fn default() -> Self {
        Self { by_client: BTreeMap::new(), pause: SHORTEST }
    }
}

impl Releases {
    pub(crate) fn add(&mut self, client: ClientId, queue: u32) {
        self.by_client.entry(client).or_default().push(queue);
    }

    /// The client is gone, and its attendant has let go of all its queues.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.by_client.remove(&client);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_client.is_empty()
    }

    /// Time until the next try; `None` if nothing waits.
    pub(crate) fn pause(&self) -> Option<Duration> {
        (!self.is_empty()).then_some(self.pause)
    }

    /// Takes the queues for the next message to a client for which `has_room` holds. `None` if there is none.
    pub(crate) fn take(
        &mut self,
        mut has_room: impl FnMut(ClientId) -> bool,
    ) -> Option<(ClientId, Vec<u32>)> {
        let Some(client) = self.by_client.keys().copied().find(|client| has_room(*client)) else {
            self.pause = (2 * self.pause).min(LONGEST);
            return None;
        };
        self.pause = SHORTEST;
        let queues = self.by_client.get_mut(&client)?;
        let rest = queues.split_off(MOST.min(queues.len()));
        let taken = std::mem::replace(queues, rest);
        if queues.is_empty() {
            self.by_client.remove(&client);
        }
        Some((client, taken))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::messages::{self, ToAttendant};

    #[test]
    fn queues_of_a_client_share_a_message() {
        let mut releases = Releases::default();
        let [one, other, gone] = [1, 2, 3].map(ClientId);
        (0..3).for_each(|queue| releases.add(one, queue));
        releases.add(other, 7);
        releases.add(gone, 1);
        releases.forget(gone);
        assert_eq!(releases.pause(), Some(SHORTEST));
        (0..20).for_each(|_| assert_eq!(releases.take(|_| false), None));
        assert_eq!(releases.pause(), Some(LONGEST));
        assert_eq!(releases.take(|client| client == other), Some((other, vec![7])));
        assert_eq!(releases.pause(), Some(SHORTEST));
        assert_eq!(releases.take(|_| true), Some((one, vec![0, 1, 2])));
        assert_eq!(releases.pause(), None);
        assert_eq!(releases.take(|_| true), None);
    }

    #[test]
    fn the_longest_message_fits() {
        let mut releases = Releases::default();
        (0..MOST as u32 + 5).for_each(|queue| releases.add(ClientId(u64::MAX), u32::MAX - queue));
        let (client, queues) = releases.take(|_| true).unwrap();
        assert_eq!(queues.len(), MOST);
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let sent = ToAttendant::Release { client, queues };
        messages::send(ours.as_fd(), &sent, &[], false).unwrap();
        match messages::receive::<ToAttendant>(theirs.as_fd()) {
            messages::Received::Message(received, _) => assert_eq!(received, sent),
            _ => panic!("the message was not received"),
        }
        assert_eq!(releases.take(|_| true).unwrap().1.len(), 5);
        assert!(releases.is_empty());
    }
}
