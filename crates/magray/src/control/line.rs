//! Lines over a socket whose other end may be slow, silent or endless.
//! Every wait has a deadline, and every line a length limit.

use std::{
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    #[error("nothing came in time")]
    Silent,
    #[error("the line is longer than {bytes_max} bytes")]
    TooLong { bytes_max: usize },
    #[error("the connection was closed before a whole line came")]
    Closed,
    #[error("the connection failed: {0}")]
    Broken(io::Error),
}

impl From<io::Error> for LineError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Silent,
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Broken(error),
        }
    }
}

pub(super) fn read(mut stream: &UnixStream, bytes_max: usize, until: Instant) -> Result<String, LineError> {
    let mut line = Vec::new();
    let mut block = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        let count = match stream.read(&mut block) {
            Ok(0) => return Err(LineError::Closed),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let end = block[..count].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&block[..end.unwrap_or(count)]);
        if line.len() > bytes_max {
            return Err(LineError::TooLong { bytes_max });
        }
        if end.is_some() {
            // What is no UTF-8 is no JSON either, and is refused by the reader.
            return Ok(String::from_utf8_lossy(&line).into_owned());
        }
    }
}

pub(super) fn write(mut stream: &UnixStream, line: &str, until: Instant) -> Result<(), LineError> {
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(rest) {
            Ok(0) => return Err(LineError::Closed),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn left(until: Instant) -> Result<Duration, LineError> {
    // A time-out of zero would wait for ever.
    until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()).ok_or(LineError::Silent)
}
