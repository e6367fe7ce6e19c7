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

use crate::messages::ClientId;

/// Queues of one message, which is then shorter than the longest.
const MOST: usize = 2048;

/// Released queues by client. No entry is empty.
#[derive(Default)]
pub(crate) struct Releases(BTreeMap<ClientId, Vec<u32>>);

impl Releases {
    pub(crate) fn add(&mut self, client: ClientId, queue: u32) {
        self.0.entry(client).or_default().push(queue);
    }

    /// The client is gone, and its attendant has let go of all its queues.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.0.remove(&client);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the queues for the next message to a client for which `has_room` holds. `None` if there is none.
    pub(crate) fn take(
        &mut self,
        mut has_room: impl FnMut(ClientId) -> bool,
    ) -> Option<(ClientId, Vec<u32>)> {
        let client = *self.0.keys().find(|client| has_room(**client))?;
        let queues = self.0.get_mut(&client)?;
        let rest = queues.split_off(MOST.min(queues.len()));
        let taken = std::mem::replace(queues, rest);
        if self.0.get(&client).is_some_and(Vec::is_empty) {
            self.0.remove(&client);
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
        assert_eq!(releases.take(|_| false), None);
        assert_eq!(releases.take(|client| client == other), Some((other, vec![7])));
        assert!(!releases.is_empty());
        assert_eq!(releases.take(|_| true), Some((one, vec![0, 1, 2])));
        assert!(releases.is_empty());
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
