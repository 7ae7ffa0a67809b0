//! Messages of the model context protocol as lines: one JSON object a line, with an answer to lines that are none.
//! Knows no method; a line that is longer than the bound is refused without being kept.

use std::{io, sync::Arc};

use rmcp::{
    ErrorData, RoleServer,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Mutex,
};

const LINE_BYTES_MAX: usize = 16 << 20;

pub(super) struct Lines<R, W> {
    read: BufReader<R>,
    /// The part of a line that has come; kept where a call that reads is cancelled.
    line: Vec<u8>,
    /// Whether the line is longer than the bound, and the rest of it is skipped.
    is_too_long: bool,
    /// `None` when it is closed.
    write: Arc<Mutex<Option<W>>>,
}

impl<R: AsyncRead + Unpin, W> Lines<R, W> {
    pub(super) fn new((read, write): (R, W)) -> Self {
        let write = Arc::new(Mutex::new(Some(write)));
        Self { read: BufReader::new(read), line: Vec::new(), is_too_long: false, write }
    }

    /// The next message, or what is wrong with the line; `None` at the end.
    async fn next(&mut self) -> Option<Result<RxJsonRpcMessage<RoleServer>, ErrorData>> {
        loop {
            // A line that cannot be read is the end.
            let come = self.read.fill_buf().await.ok().filter(|come| !come.is_empty())?;
            let end = come.iter().position(|byte| *byte == b'\n');
            let bytes = end.unwrap_or(come.len());
            self.is_too_long |= self.line.len() + bytes > LINE_BYTES_MAX;
            if !self.is_too_long {
                self.line.extend_from_slice(&come[..bytes]);
            }
            self.read.consume(end.map_or(bytes, |end| end + 1));
            if end.is_none() {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if std::mem::take(&mut self.is_too_long) {
                let message = format!("a message has at most {LINE_BYTES_MAX} bytes");
                return Some(Err(ErrorData::invalid_request(message, None)));
            }
            if !line.trim_ascii().is_empty() {
                return Some(read_message(&line));
            }
        }
    }
}

/// Reads a message, or says what is wrong with it by the codes of JSON-RPC.
pub(super) fn read_message(bytes: &[u8]) -> Result<RxJsonRpcMessage<RoleServer>, ErrorData> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    serde_json::from_slice(bytes).map_err(|error| match serde_json::from_slice::<serde_json::Value>(bytes) {
        Err(error) => ErrorData::parse_error(format!("this is not JSON: {error}"), None),
        Ok(value) => {
            let method = value.get("method").and_then(serde_json::Value::as_str);
            let of = method.map_or_else(String::new, |method| format!(" of the method '{method}'"));
            ErrorData::invalid_request(format!("this is no message{of} of JSON-RPC 2.0: {error}"), None)
        }
    })
}

async fn write_line<W: AsyncWrite + Unpin>(
    write: &Mutex<Option<W>>,
    message: &TxJsonRpcMessage<RoleServer>,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    // Held until the whole line is written: answers come at once.
    let mut write = write.lock().await;
    let write = write.as_mut().ok_or(io::ErrorKind::NotConnected)?;
    write.write_all(&line).await?;
    write.flush().await
}

impl<R, W> Transport<RoleServer> for Lines<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(&mut self, message: TxJsonRpcMessage<RoleServer>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let write = Arc::clone(&self.write);
        async move { write_line(&write, &message).await }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            match self.next().await? {
                Ok(message) => return Some(message),
                Err(error) => {
                    write_line(&self.write, &TxJsonRpcMessage::<RoleServer>::error(error, None)).await.ok()?
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.write.lock().await.take();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written in answer to these bytes, and how many messages there were.
    fn answered(bytes: &[u8]) -> (Vec<serde_json::Value>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut lines = Lines::new((bytes, Vec::new()));
            let mut messages = 0;
            while lines.receive().await.is_some() {
                messages += 1;
            }
            let written = lines.write.lock().await.take().unwrap();
            let read = |line: &[u8]| serde_json::from_slice(line).unwrap();
            (written.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(read).collect(), messages)
        })
    }

    #[test]
    fn garbage_was_not_answered() {
        let ping = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let (answers, messages) = answered(&[b"what?\n\n{\"jsonrpc\"\n[]\n\xff\n".as_slice(), ping, b"\r\n"].concat());
        let codes: Vec<_> = answers.iter().map(|answer| (&answer["error"]["code"], &answer["id"])).collect();
        let null = serde_json::Value::Null;
        let expected = [-32700, -32700, -32600, -32700].map(serde_json::Value::from);
        assert_eq!(codes, expected.iter().map(|code| (code, &null)).collect::<Vec<_>>());
        assert_eq!(messages, 1);
    }

    #[test]
    fn a_line_without_an_end_is_refused_and_not_kept() {
        let long = [vec![b'x'; LINE_BYTES_MAX + 1], b"\n".to_vec()].concat();
        let (answers, messages) = answered(&long);
        assert_eq!((answers.len(), &answers[0]["error"]["code"], messages), (1, &(-32600).into(), 0));
    }
}
