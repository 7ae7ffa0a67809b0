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
use wire::{HEADER_BYTES, decode, encode};

/// Bytes that another process sends are messages or an error, with a header before them and without.
pub(crate) fn check(bytes: &[u8]) {
    let (mut sends, receives) = UnixStream::pair().expect("sockets");
    // Far less than the system keeps of a socket, so that it need not be read meanwhile.
    sends.write_all(bytes).expect("there is room");
    drop(sends);
    let mut incoming = Incoming::new(receives);
    while incoming.next::<ToWorker<'_>>().is_ok() {}
    assert!(incoming.take_fd().is_none());
    // Bytes are compared: messages may hold NaN, which equals nothing.
    let (mut written, mut again) = (Vec::new(), Vec::new());
    if let Ok(message) = decode::<ToWorker<'_>>(bytes) {
        encode(&message, &mut written);
        encode(&decode::<ToWorker<'_>>(&written[HEADER_BYTES..]).expect("what was written"), &mut again);
        assert_eq!(written, again);
    }
    if let Ok(message) = decode::<ToSupervisor<'_>>(bytes) {
        encode(&message, &mut written);
        encode(&decode::<ToSupervisor<'_>>(&written[HEADER_BYTES..]).expect("what was written"), &mut again);
        assert_eq!(written, again);
    }
}
