//! A peer that plays its part as a test says.
//!
//! ```text
//! Hostile::meet: handshake, greetings ─► send, receive: any messages
//! ```

use std::net::TcpListener;

use memferry::{PeerReason, RemoteToken};
use memferry_link::Greeting;
use memferry_link::message::Message;

/// A peer that knows a node's key, and what the links say.
pub(crate) struct Hostile {
    pub(crate) reader: memferry_link::Reader,
    pub(crate) writer: memferry_link::Writer,
}

impl Hostile {
    /// Waits for the node to connect.
    pub(crate) fn meet(listener: &TcpListener, config: &memferry_link::Config) -> Self {
        Self::meet_as(listener, config, |_| Greeting { ucx: None, require_encryption: true }).0
    }

    /// Waits for the node to connect, and answers its greeting. Returns what it said.
    pub(crate) fn meet_as(
        listener: &TcpListener,
        config: &memferry_link::Config,
        greet: impl FnOnce(&Greeting) -> Greeting,
    ) -> (Self, Greeting) {
        let secured = memferry_link::accept(listener.accept().unwrap().0, config).unwrap();
        let mut reader = secured.reader;
        let mut writer = secured.writer;
        let theirs = postcard::from_bytes(&reader.receive().unwrap()).unwrap();
        writer.send(&postcard::to_allocvec(&greet(&theirs)).unwrap()).unwrap();
        reader.settle().unwrap();
        (Self { reader, writer }, theirs)
    }

    pub(crate) fn send(&mut self, message: &Message, payload: &[u8]) {
        let mut bytes = message.encode(payload.len());
        bytes.extend_from_slice(payload);
        // It may have ended the connection.
        let _ = self.writer.send(&bytes);
    }

    /// The next answer; `None` when the node has ended the connection.
    pub(crate) fn receive(&mut self) -> Option<(Message, Vec<u8>)> {
        loop {
            let bytes = self.reader.receive().ok()?;
            let (message, payload) = Message::decode(&bytes).unwrap();
            if message != Message::Ping {
                return Some((message, payload.to_vec()));
            }
        }
    }

    pub(crate) fn attach(&mut self, token: RemoteToken, user: u32) -> Result<u32, PeerReason> {
        let RemoteToken { service, token, .. } = token;
        self.send(&Message::Attach { id: 5, service, token, user }, &[]);
        match self.receive() {
            Some((Message::Attached { id: 5, outcome }, _)) => outcome.map(|attached| attached.number),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn access(
        &mut self,
        attachment: u32,
        piece: (u64, u32),
        payload: Option<&[u8]>,
    ) -> Result<Vec<u8>, PeerReason> {
        let write = payload.is_some();
        let access = Message::Access { operation: 9, transfer: 9, attachment, write, pieces: vec![piece] };
        self.send(&access, payload.unwrap_or_default());
        match self.receive() {
            Some((Message::Done { operation: 9, outcome }, read)) => outcome.map(|_| read),
            other => panic!("{other:?}"),
        }
    }
}
