//! A client and a link of another node that say anything, against the relay between them.
//!
//! ```text
//! bytes ──► slots, contents, counts of the client ──► Relay::take ─────► as a second reading of the slots says, encoded anew
//!       ──► slots and contents of the far end ──────► Relay::put ──────► in the client's view, and nothing outside their place
//!       ──► retire, finished, close, arm ───────────► never more than is under way
//! ```

use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use memferry::{Client, Identity, RefusalKind};
use memferry_bulk::RemoteUser;
use memferry_bulk::relay::{Carried, Closed, Relay};
use memferry_shm::conduit;
use rustix::net::Shutdown;

use crate::bulk_slot::{
    AREA_BYTES, Hostile, LeavesNoThread, RECEIVER_CLOSED, RETIRED, SENDER_CLOSED, SLOTS, Slot, WORDS, clients,
};
use crate::input::Input;

/// Input: a byte that says whether the client has a session, then steps of one byte and its operands (see `step`).
pub fn bulk_relay(data: &[u8]) {
    static CLIENTS: OnceLock<Mutex<(Client, Client, Identity)>> = OnceLock::new();
    let clients =
        CLIENTS.get_or_init(|| Mutex::new(clients())).lock().unwrap_or_else(PoisonError::into_inner);
    let _threads = LeavesNoThread::new();
    let mut input = Input::new(data);
    let mut rig = Rig::new(&clients, !input.u8().is_multiple_of(4));
    while !input.is_empty() && !rig.is_broken {
        rig.step(&mut input);
    }
}

struct Rig {
    relay: Relay,
    client: Hostile,
    has_session: bool,
    /// Slots taken of the client, and those that the far end has finished with.
    taken: u32,
    finished: u32,
    /// Bytes of the area that each slot taken and not finished uses.
    held: Vec<u32>,
    /// Images put for the client, and those that the client has finished with.
    put: u32,
    reported: u32,
    is_broken: bool,
}

impl Rig {
    fn new((link, other, identity): &(Client, Client, Identity), has_session: bool) -> Self {
        let mut identity = *identity;
        if !has_session {
            // The client is of another service, so it has none here.
            identity.service.0 ^= 1;
        }
        let mut request = Hostile::greeting(&identity, other.session(), 100);
        request.extend(1_u32.to_le_bytes());
        request.extend(0_u32.to_le_bytes());
        request.extend(b"name");
        request.resize(request.len() + 28, 0);
        let (mut client, guest) = Hostile::request(link, &request);
        let guest = guest.expect("a good request");
        let user = RemoteUser { node: "beta".parse().expect("a name"), user: 5 };
        let relay = guest.join(user, 77).expect("a client that waits");
        assert_eq!(relay.session().is_some(), has_session);
        let answer = client.receive_memory();
        assert_eq!(answer[40..48], 77_u64.to_le_bytes(), "the longest message of the far end");
        Self {
            relay,
            client,
            has_session,
            taken: 0,
            finished: 0,
            held: Vec::new(),
            put: 0,
            reported: 0,
            is_broken: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 12 {
            0 | 1 => self.client.put(&Slot::any(input)),
            2 => self.client.store(usize::from(input.u8()) << 2 | usize::from(input.u8() % 4), input.u64()),
            3 => self.client.fill_area(u64::from(input.u32()), &[input.u8(); 200]),
            4 | 5 => self.take(),
            6 => self.put(input),
            7 => {
                // As an honest client: it has finished with some more.
                let open = self.put.wrapping_sub(self.client.load(RETIRED) as u32);
                let more = u32::from(input.u8()) % (open.min(SLOTS) + 1);
                let count = (self.client.load(RETIRED) as u32).wrapping_add(more);
                self.client.store(RETIRED, u64::from(count));
            }
            8 => self.count(),
            9 => self.retire(u32::from(input.u8() % 70)),
            10 => self.close(input.u8()),
            _ => self.socket(input.u8()),
        }
    }

    /// What the client's next slot is to be taken as.
    fn expected(&self) -> Option<Result<(Slot, Vec<u8>), ()>> {
        let words = self.client.slot(self.taken)?;
        if self.taken - self.finished >= SLOTS {
            return Some(Err(()));
        }
        let Some(slot) = Slot::read(&words) else { return Some(Err(())) };
        let held: u64 = self.held.iter().map(|held| u64::from(*held)).sum();
        Some(match slot {
            Slot::Piece { at, length, .. } if held + u64::from(length) <= AREA_BYTES => {
                let bytes = self.client.area(at, length);
                Ok((slot, bytes))
            }
            Slot::Inline { .. } | Slot::Lent { .. } => Ok((slot, Vec::new())),
            // Only a link withholds a grant.
            Slot::Remote { reason: 0, .. } if self.has_session => Ok((slot, Vec::new())),
            _ => Err(()),
        })
    }

    fn take(&mut self) {
        let expected = self.expected();
        match (self.relay.take(), expected) {
            (Ok(None), None) => {}
            (Ok(Some(carried)), Some(Ok((slot, bytes)))) => {
                assert_eq!(Slot::read(&carried.slot).as_ref(), Some(&slot));
                assert_eq!(carried.bytes, bytes);
                assert_eq!(carried.slot[0] & 0xffff, 0, "the sequence is the ring's");
                let grant = carried.grant().map(|token| token.to_raw());
                assert_eq!(grant, if let Slot::Remote { token, .. } = slot { Some(token) } else { None });
                self.check_withheld(&carried, &slot);
                self.taken += 1;
                self.held.push(bytes.len() as u32);
            }
            (Err(_), Some(Err(()))) => self.is_broken = true,
            (taken, expected) => panic!("{taken:?}, expected {expected:?}"),
        }
    }

    /// A grant that is withheld leaves nothing of it but its length and the reason.
    fn check_withheld(&self, carried: &Carried, slot: &Slot) {
        for (reason, why) in [(0, None), (2, Some(RefusalKind::Capability))] {
            let mut carried = carried.clone();
            carried.withhold_grant(why);
            let expected = match slot {
                Slot::Remote { index, length, .. } => {
                    Slot::Remote { index: *index, reason, token: 0, length: *length }
                }
                other => other.clone(),
            };
            assert_eq!(Slot::read(&carried.slot), Some(expected));
            let is_remote = matches!(slot, Slot::Remote { .. });
            assert!(!is_remote || carried.slot[4..6] == [0, 0], "the service of a withheld grant");
        }
    }

    fn put(&mut self, input: &mut Input<'_>) {
        let words = Slot::any(input);
        let slot = Slot::read(&words);
        let wanted = if let Some(Slot::Piece { length, .. }) = slot { length } else { 0 };
        // The far end says the right length in most cases.
        let length = if input.u8() < 230 { wanted } else { u32::from(input.u8()) };
        let bytes: Vec<u8> =
            (0..length).map(|index| (index as u8).wrapping_mul(7) ^ self.put as u8).collect();
        let carried = Carried { slot: words, bytes };
        let has_room = self.put.wrapping_sub(self.reported) < SLOTS;
        let is_good = has_room
            && length == wanted
            && matches!(
                slot,
                Some(Slot::Piece { .. } | Slot::Inline { .. } | Slot::Lent { .. } | Slot::Remote { .. })
            );
        match self.relay.put(&carried) {
            Ok(()) => {
                assert!(is_good, "{carried:?} was put for the client");
                let image = self.client.their_slot(self.put);
                assert_eq!(Slot::read(&image), slot);
                assert_eq!(image[0] & 0xffff, u64::from(self.put.wrapping_add(1) & 0xffff));
                if let Some(Slot::Piece { at, .. }) = slot {
                    self.check_area(at, &carried.bytes);
                }
                self.put = self.put.wrapping_add(1);
            }
            Err(_) => {
                assert!(!is_good, "{carried:?} was refused");
                assert_ne!(
                    self.client.their_slot(self.put)[0] & 0xffff,
                    u64::from(self.put.wrapping_add(1) & 0xffff)
                );
                self.is_broken = true;
            }
        }
    }

    /// The contents of an image are in their place in the relay's memory.
    fn check_area(&self, at: u64, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        let words = self.client.theirs.as_ref().expect("the relay's memory");
        memferry_shm::storage::MappedWords::mapping(words)
            .read(crate::bulk_slot::AREA_AT + at, &mut bytes)
            .expect("inside the area");
        assert_eq!(bytes, expected);
    }

    /// The client says how many images it has finished with.
    fn count(&mut self) {
        let claimed = self.client.load(RETIRED) as u32;
        let more = claimed.wrapping_sub(self.reported);
        let is_possible = more <= self.put.wrapping_sub(self.reported);
        match self.relay.finished() {
            Ok(count) => {
                assert!(is_possible && count == more, "{count} of {claimed}");
                self.reported = claimed;
            }
            Err(_) => {
                assert!(!is_possible, "a possible count was refused");
                self.is_broken = true;
            }
        }
    }

    fn retire(&mut self, count: u32) {
        let is_possible = count <= self.taken - self.finished;
        assert_eq!(self.relay.retire(count).is_ok(), is_possible);
        if is_possible {
            self.held.drain(..count as usize);
            self.finished += count;
        }
        assert_eq!(self.client.their(RETIRED), u64::from(self.finished));
    }

    fn close(&mut self, which: u8) {
        let is_set = |index| self.client.load(index) != 0;
        let closed = Closed { sender: is_set(SENDER_CLOSED), receiver: is_set(RECEIVER_CLOSED) };
        assert_eq!(self.relay.closed(), closed);
        let before = [SENDER_CLOSED, RECEIVER_CLOSED].map(|index| self.client.their(index));
        self.relay.close(Closed { sender: which & 1 == 1, receiver: which & 2 == 2 });
        let after = [SENDER_CLOSED, RECEIVER_CLOSED].map(|index| self.client.their(index));
        for (bit, (before, after)) in before.into_iter().zip(after).enumerate() {
            assert_eq!(after, if which >> bit & 1 == 1 { 1 } else { before });
        }
    }

    /// What a client does with its socket.
    fn socket(&mut self, what: u8) {
        let socket = self.client.socket.as_fd();
        match what % 6 {
            0 => {
                let _ = conduit::send(socket, &[what; 4], &[], false);
            }
            1 => {
                let _ = conduit::send(socket, &vec![what; usize::from(what)], &[], false);
            }
            2 => {
                // Linux may refuse it here, else the relay has to.
                let _ = conduit::send(socket, &[what; 4], &[self.client.memory.as_fd()], false);
            }
            3 => {
                let _ = rustix::net::shutdown(&self.client.socket, Shutdown::Both);
                assert!(self.relay.is_lost());
            }
            4 => {
                let _ = self.relay.is_lost();
            }
            _ => {
                let has_slot = self.client.slot(self.taken).is_some();
                let claimed = self.client.load(RETIRED) as u32;
                match self.relay.arm() {
                    Ok(is_ready) => {
                        assert!(is_ready || !has_slot && claimed == self.reported, "news are missed")
                    }
                    Err(_) => self.is_broken = true,
                }
                // What the relay holds of the client's can be no more than what the client may send.
                assert!(self.held.len() <= SLOTS as usize && WORDS == 8);
            }
        }
    }
}
