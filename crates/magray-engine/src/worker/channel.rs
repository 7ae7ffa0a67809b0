//! Whole messages over a socket between two processes, and the handle of shared memory along with one of them.
//! Knows no message's meaning; gives up at the first byte that makes no sense.

use super::wire::{Garbled, HEADER_BYTES, PAYLOAD_BYTES_MAX, PROTOCOL, decode, encode};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why no message came or went.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other process closed its end: it is gone.
    #[error("the other process is gone")]
    Closed,
    /// Nothing came within the time that was given.
    #[error("the other process said nothing for too long")]
    Timeout,
    /// The program's file was replaced by another build while it ran.
    #[error("the other process speaks protocol {found} and this one {PROTOCOL}: stop magray and start it again")]
    Version {
        /// What it speaks.
        found: u8,
    },
    /// The bytes are no message.
    #[error("the other process sent {what}")]
    Garbled {
        /// What is wrong with them.
        what: &'static str,
    },
    /// The system refused.
    #[error("the socket between two processes failed: {0}")]
    Io(#[from] io::Error),
}

impl From<Garbled> for ChannelError {
    fn from(Garbled(what): Garbled) -> Self {
        Self::Garbled { what }
    }
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Incoming {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// What has arrived and was not handed out.
    unread: Range<usize>,
    /// Handles that came along with messages, in their order.
    fds: VecDeque<OwnedFd>,
    spin: Duration,
}

/// Room for the messages of a batch many times over.
const BUFFER_BYTES: usize = 4096;
/// How long a socket is asked again and again before the thread sleeps: waking it up takes about as long.
const SPIN: Duration = Duration::from_micros(50);

impl Incoming {
    pub(super) fn new(stream: UnixStream) -> Self {
        // Where there are few cores, the sender needs this one.
        let has_cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 2);
        let spin = if has_cores { SPIN } else { Duration::ZERO };
        Self { stream, buffer: vec![0; BUFFER_BYTES], unread: 0..0, fds: VecDeque::new(), spin }
    }

    /// The next message; waits for it. The receiving timeout of the socket holds for every part of it.
    pub(super) fn next<'a, T: Deserialize<'a>>(&'a mut self) -> Result<T, ChannelError> {
        let payload = loop {
            match self.whole()? {
                Some(found) => break found,
                None => self.fill()?,
            }
        };
        self.unread.start = payload.end;
        Ok(decode(&self.buffer[payload])?)
    }

    /// Whether a whole message is at hand; waits for nothing.
    pub(super) fn has_next(&mut self) -> Result<bool, ChannelError> {
        if self.whole()?.is_none() {
            self.make_room();
            match self.receive(RecvFlags::DONTWAIT) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(bytes) => self.unread.end += bytes,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(ChannelError::Closed),
                Err(error) => return Err(ChannelError::Io(error.into())),
            }
        }
        Ok(self.whole()?.is_some())
    }

    /// Whether this machine has cores enough for a thread that asks again and again.
    pub(super) fn may_spin(&self) -> bool {
        !self.spin.is_zero()
    }

    /// Gives up waiting after this time; `None`: never.
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), ChannelError> {
        Ok(self.stream.set_read_timeout(timeout.map(|timeout| timeout.max(Duration::from_millis(1))))?)
    }

    /// The handle that came along with the message that was handed out. Every message that has one is asked for it, or
    /// the next would get the wrong one.
    pub(super) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// Where the first message lies, if all of it is there.
    fn whole(&mut self) -> Result<Option<Range<usize>>, ChannelError> {
        let unread = &self.buffer[self.unread.clone()];
        let Some(&[a, b, c, d, protocol]) = unread.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        if protocol != PROTOCOL {
            return Err(ChannelError::Version { found: protocol });
        }
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > PAYLOAD_BYTES_MAX {
            return Err(ChannelError::Garbled { what: "a message that is too long" });
        }
        let start = self.unread.start + HEADER_BYTES;
        if self.unread.end - start >= length {
            return Ok(Some(start..start + length));
        }
        // The rest goes behind what is there.
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        if self.buffer.len() < HEADER_BYTES + length {
            self.buffer.resize(HEADER_BYTES + length, 0);
        }
        Ok(None)
    }

    /// Room behind what has arrived.
    fn make_room(&mut self) {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.buffer.len() - self.unread.end < HEADER_BYTES {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
    }

    /// Takes what has arrived; waits until something has.
    fn fill(&mut self) -> Result<(), ChannelError> {
        self.make_room();
        let began = Instant::now();
        let mut flags = RecvFlags::DONTWAIT;
        if self.spin.is_zero() {
            flags = RecvFlags::empty();
        }
        loop {
            match self.receive(flags) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(bytes) => {
                    self.unread.end += bytes;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if flags.is_empty() => return Err(ChannelError::Timeout),
                Err(Errno::AGAIN) if began.elapsed() < self.spin => std::hint::spin_loop(),
                Err(Errno::AGAIN) => flags = RecvFlags::empty(),
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(ChannelError::Closed),
                Err(error) => return Err(ChannelError::Io(error.into())),
            }
        }
    }

    fn receive(&mut self, flags: RecvFlags) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut along = RecvAncillaryBuffer::new(&mut space);
        let room = &mut self.buffer[self.unread.end..];
        let received = recvmsg(&self.stream, &mut [IoSliceMut::new(room)], &mut along, flags | CLOSE_ON_EXEC)?;
        for message in along.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        // More than messages fit into the buffer that have one: handles arrive that are not taken.
        if self.fds.len() > BUFFER_BYTES / HEADER_BYTES {
            return Err(Errno::TOOMANYREFS);
        }
        Ok(received.bytes)
    }
}

/// Handles that arrive are not for the children of this process.
#[cfg(target_os = "linux")]
const CLOSE_ON_EXEC: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOSE_ON_EXEC: RecvFlags = RecvFlags::empty();

/// The sending end.
#[derive(Debug)]
pub(super) struct Outgoing {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Outgoing {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::with_capacity(256) }
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        encode(message, &mut self.buffer);
        assert!(self.buffer.len() <= HEADER_BYTES + PAYLOAD_BYTES_MAX, "messages are bounded where they are made");
        self.stream.write_all(&self.buffer).map_err(sending_failed)
    }

    /// Sends a message and the handle of something that this process holds.
    pub(super) fn send_along(&mut self, fd: BorrowedFd<'_>, message: &impl Serialize) -> Result<(), ChannelError> {
        encode(message, &mut self.buffer);
        let fds = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        let fits = along.push(SendAncillaryMessage::ScmRights(&fds));
        assert!(fits, "there is room for one handle");
        let sent = loop {
            match sendmsg(&self.stream, &[IoSlice::new(&self.buffer)], &mut along, SendFlags::empty()) {
                Err(Errno::INTR) => {}
                sent => break sent.map_err(|error| sending_failed(error.into()))?,
            }
        };
        self.stream.write_all(&self.buffer[sent..]).map_err(sending_failed)
    }
}

/// The sending end for several threads.
#[derive(Clone)]
pub(super) struct SharedOutgoing(Arc<Mutex<Outgoing>>);

impl SharedOutgoing {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self(Arc::new(Mutex::new(Outgoing::new(stream))))
    }

    pub(super) fn send(&self, message: &impl Serialize) -> Result<(), ChannelError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send(message)
    }
}

fn sending_failed(error: io::Error) -> ChannelError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ChannelError::Closed,
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ChannelError::Timeout,
        _ => ChannelError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::ToWorker;
    use super::*;
    use magray_device::SharedMemory;

    fn pair() -> (Outgoing, Incoming) {
        let (here, there) = UnixStream::pair().unwrap();
        (Outgoing::new(here), Incoming::new(there))
    }

    #[test]
    fn messages_come_one_by_one_also_when_they_arrive_together() {
        let (mut out, mut incoming) = pair();
        let long = vec![b'x'; 3 * BUFFER_BYTES];
        let sent = [ToWorker::Trim, ToWorker::Open(&long), ToWorker::Stop];
        sent.iter().for_each(|message| out.send(message).unwrap());
        drop(out);
        for message in sent {
            assert_eq!(incoming.next::<ToWorker<'_>>().unwrap(), message);
        }
        assert!(matches!(incoming.next::<ToWorker<'_>>(), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_message_in_pieces_is_put_together() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::new(there);
        incoming.set_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut bytes = Vec::new();
        encode(&ToWorker::Open(b"12345"), &mut bytes);
        for byte in &bytes[..bytes.len() - 1] {
            (&here).write_all(&[*byte]).unwrap();
            assert!(matches!(incoming.next::<ToWorker<'_>>(), Err(ChannelError::Timeout)));
        }
        (&here).write_all(&bytes[bytes.len() - 1..]).unwrap();
        assert_eq!(incoming.next::<ToWorker<'_>>().unwrap(), ToWorker::Open(b"12345"));
    }

    #[test]
    fn many_messages_do_not_let_the_buffer_grow() {
        let (mut out, mut incoming) = pair();
        for _ in 0..50 {
            for _ in 0..40 {
                out.send(&ToWorker::Open(&[7; 99])).unwrap();
            }
            for _ in 0..40 {
                assert_eq!(incoming.next::<ToWorker<'_>>().unwrap(), ToWorker::Open(&[7; 99]));
            }
        }
        assert_eq!(incoming.buffer.len(), BUFFER_BYTES);
    }

    #[test]
    fn another_protocol_and_garbage_are_refused() {
        let refused = |bytes: &[u8]| {
            let (here, there) = UnixStream::pair().unwrap();
            (&here).write_all(bytes).unwrap();
            Incoming::new(there).next::<ToWorker<'_>>().unwrap_err()
        };
        let message = refused(&[0, 0, 0, 0, PROTOCOL + 1]).to_string();
        assert!(message.contains(&format!("protocol {}", PROTOCOL + 1)) && message.contains("start it again"));
        let garbled = refused(&[255, 255, 255, 255, PROTOCOL]);
        assert!(matches!(garbled, ChannelError::Garbled { what } if what.contains("too long")));
        let unknown = refused(&[1, 0, 0, 0, PROTOCOL, 99]);
        assert!(matches!(unknown, ChannelError::Garbled { what } if what.contains("no message")));
    }

    #[test]
    fn a_handle_comes_along_with_its_message() {
        let (mut out, mut incoming) = pair();
        let memory = SharedMemory::create(3).unwrap();
        memory.write(0, &[4, 5, 6]);
        out.send_along(memory.fd(), &ToWorker::Trim).unwrap();
        incoming.next::<ToWorker<'_>>().unwrap();
        let there = SharedMemory::from_fd(incoming.take_fd().unwrap(), 3).unwrap();
        let mut words = [0; 3];
        there.read(0, &mut words);
        assert_eq!(words, [4, 5, 6]);
        assert!(incoming.take_fd().is_none());
    }

    #[test]
    fn handles_that_arrive_together_belong_to_their_messages() {
        let (mut out, mut incoming) = pair();
        let memories: Vec<SharedMemory> = (1..=3).map(|words| SharedMemory::create(words).unwrap()).collect();
        for memory in &memories {
            memory.write(0, &[memory.words() as u32]);
            out.send(&ToWorker::Trim).unwrap();
            out.send_along(memory.fd(), &ToWorker::Stop).unwrap();
        }
        // Everything that has arrived is taken in before the first message is looked at.
        for _ in 0..6 {
            incoming.fill().unwrap_or_else(|error| panic!("{error}"));
            if incoming.unread.len() == 6 * (HEADER_BYTES + 1) {
                break;
            }
        }
        for memory in &memories {
            incoming.next::<ToWorker<'_>>().unwrap();
            incoming.next::<ToWorker<'_>>().unwrap();
            let there = SharedMemory::from_fd(incoming.take_fd().unwrap(), memory.words()).unwrap();
            let mut words = [0];
            there.read(0, &mut words);
            assert_eq!(words, [memory.words() as u32]);
        }
    }

    #[test]
    fn a_process_that_is_gone_is_told_apart() {
        let (mut out, incoming) = pair();
        drop(incoming);
        assert!(matches!(out.send(&ToWorker::Stop), Err(ChannelError::Closed)));
    }
}
