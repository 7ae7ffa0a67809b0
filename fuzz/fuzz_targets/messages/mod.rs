//! The part of the engine that carries messages between supervisor and worker, as it stands in its crate, and what must hold of it.
//! Starts no process.

#[path = "../../../crates/magray-engine/src/worker/channel.rs"]
mod channel;
#[path = "../../../crates/magray-engine/src/worker/message.rs"]
mod message;
#[path = "../../../crates/magray-engine/src/worker/wire.rs"]
mod wire;

use channel::Incoming;
use message::{ToSupervisor, ToWorker};
use std::io::Write;
use std::os::unix::net::UnixStream;
use wire::HEADER_BYTES;

/// Bytes that another process sends are messages or an error; a message that is written and read again is the same.
pub(crate) fn check(bytes: &[u8]) {
    let (mut sends, receives) = UnixStream::pair().expect("sockets");
    // Far less than the system keeps of a socket, so that nobody has to read meanwhile.
    sends.write_all(bytes).expect("there is room");
    drop(sends);
    let mut incoming = Incoming::new(receives);
    let (mut once, mut again) = (Vec::new(), Vec::new());
    let mut read = 0;
    while let Ok(frame) = incoming.next() {
        read += HEADER_BYTES + frame.payload.len();
        if let Ok(message) = ToWorker::decode(frame.kind, frame.payload) {
            message.encode(&mut once);
            let copy = ToWorker::decode(once[HEADER_BYTES - 1], &once[HEADER_BYTES..]).expect("it was a message");
            copy.encode(&mut again);
            assert_same(&once, &again, frame.payload);
        }
        if let Ok(message) = ToSupervisor::decode(frame.kind, frame.payload) {
            message.encode(&mut once);
            let copy = ToSupervisor::decode(once[HEADER_BYTES - 1], &once[HEADER_BYTES..]).expect("it was a message");
            copy.encode(&mut again);
            assert_same(&once, &again, frame.payload);
        }
    }
    assert!(read <= bytes.len());
    assert!(incoming.take_fd().is_none());
}

/// Texts that are too long are cut where they are written; all else is written as it came.
fn assert_same(once: &[u8], again: &[u8], came: &[u8]) {
    assert_eq!(once, again);
    assert!(once.len() < HEADER_BYTES + came.len() || once[HEADER_BYTES..] == *came);
}
