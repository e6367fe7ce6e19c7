//! Decodes control messages from a hostile peer with every decoder of the protocol.
//!
//! ```text
//! serial, descriptors, bytes ──► decode_command ──► encode ──► decode_command    equal
//!                      bytes ──► Hello, Welcome, Reply, farewell                 a value or an error, never a panic
//! ```
//!
//! The commands are not executed.

use memferry_service::protocol::{
    Command, Envelope, Hello, Reply, Welcome, decode, decode_command, decode_violation, encode,
    encode_violation,
};

/// Input: a byte for the expected serial, a byte for the number of received descriptors, then the message.
pub fn control_message(data: &[u8]) {
    let [serial, descriptors, bytes @ ..] = data else { return };
    let serial = u32::from(*serial);
    let received = usize::from(*descriptors);
    if let Ok(command) = decode_command(bytes, serial, received) {
        assert_eq!(received, usize::from(command.descriptors()));
        let descriptors = command.descriptors();
        let again = encode(&Envelope { serial, descriptors, body: command.clone() });
        assert_eq!(decode_command(&again, serial, received).as_ref(), Ok(&command));
        assert!(decode_command(&again, serial.wrapping_add(1), received).is_err(), "a replay");
    }
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        if let Ok(version) = hello.agree() {
            assert!(hello.versions.0 <= version && version <= hello.versions.1);
        }
    }
    if let Ok(welcome) = Welcome::decode(bytes) {
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
    }
    if let Ok(reply) = decode::<Reply>(bytes) {
        assert_eq!(decode(&encode(&reply)), Ok(reply));
        assert_eq!(decode_violation(bytes), None, "a reply decoded as a farewell");
    }
    if let Some(violation) = decode_violation(bytes) {
        assert_eq!(decode_violation(&encode_violation(&violation)), Some(violation));
    }
    let _ = decode::<Envelope<Command>>(bytes);
}
