//! Takes connections and speaks HTTP/1.1 and HTTP/2 on them, until the server is told to stop.
//! No client can hold it up: each has limited time to speak, and there are only so many.

use std::{
    io::{self, Cursor},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hyper::server::conn::{http1, http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tower::{Layer, util::option_layer};

use super::{
    connections::{Connections, Idle},
    gate::Peer,
    patience::Patient,
    site::Site,
    state::App,
    tls::Tls,
    unread::{Metered, Unread},
    watch::{Visitor, watch as watched},
};

/// How connections are taken.
#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) tls: Option<Tls>,
    pub(crate) connections_max: usize,
    /// From the start of a connection, or the end of an answer, to the whole head of the next request.
    pub(crate) head_within: Duration,
}

/// Bytes of a request's head at most.
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 100;
/// What a connection of HTTP/1.1 reads ahead of its requests' handlers.
const READ_AHEAD_BYTES_MAX: usize = 64 << 10;
/// Requests at once on one connection of HTTP/2, and bytes of each one's head.
const STREAMS_MAX: u32 = 100;
const STREAM_HEAD_BYTES_MAX: u32 = 16 << 10;
/// Bytes of bodies that a client of HTTP/2 may send before they are read: by one request, and by all of a connection.
const WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of an answer that are kept for a client of HTTP/2 in frames; the others wait in the answer itself.
const SEND_BYTES_MAX: usize = 128 << 10;
/// A connection of HTTP/2 that says nothing is asked whether it is there.
const PING_AFTER: Duration = Duration::from_secs(20);
/// After a failure to take a connection: there are no files left, most often.
const PAUSE: Duration = Duration::from_millis(50);
/// What a connection of HTTP/2 says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Takes connections until `stop` is done, then lets requests end that were begun; `false` if some took longer than
/// `drain_within`.
pub(crate) async fn serve(
    listener: TcpListener,
    listening: Listening,
    site: Arc<Site>,
    stop: impl Future<Output = ()>,
    drain_within: Duration,
) -> bool {
    let graceful = GracefulShutdown::new();
    let (stopping, is_stopping) = watch::channel(false);
    let mut connections = Connections::default();
    tokio::pin!(stop);
    loop {
        let taken = tokio::select! {
            () = &mut stop => break,
            taken = listener.accept() => taken,
        };
        let (stream, peer) = match taken {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(target: "magray::server", %error, "a connection was not taken");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if !has_place(site.app.connections().load(Ordering::Relaxed), listening.connections_max, &connections) {
            // One too many is closed at once: a client that waits for nothing would not know why.
            site.app.metrics().turned_away();
            continue;
        }
        let place = Place::take(&site.app);
        let connection = connections.enter(Unread::new(site.app.admission()));
        let (watcher, mut is_stopping) = (graceful.watcher(), is_stopping.clone());
        let (listening, site) = (listening.clone(), Arc::clone(&site));
        tokio::spawn(async move {
            let _place = place;
            let greeted = tokio::select! {
                greeted = greet(stream, &listening, &site.app) => greeted,
                // Nothing was asked yet.
                _ = connection.has_to_go(Idle::Any) => Ok(None),
                _ = is_stopping.wait_for(|is_stopping| *is_stopping) => Ok(None),
            };
            let spoken = match greeted {
                Ok(Some(greeted)) => {
                    speak(greeted, &listening, Visitor { site, connection, peer: Peer(peer) }, watcher).await
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = spoken {
                tracing::debug!(target: "magray::server", error, "a connection ended early");
            }
        });
    }
    // New clients are refused by the system from here on.
    drop(listener);
    stopping.send_replace(true);
    tokio::time::timeout(drain_within, graceful.shutdown()).await.is_ok()
}

/// Whether there is a place for one more connection, if need be that of one that is idle.
fn has_place(open: usize, connections_max: usize, connections: &Connections) -> bool {
    /// Connections that are on their way out at the same time, at most.
    const LEAVING_MAX: usize = 64;
    open < connections_max || open < connections_max + LEAVING_MAX && connections.show_out()
}

/// A connection among those that are counted, until it is dropped.
struct Place(App);

impl Place {
    fn take(app: &App) -> Self {
        app.connections().fetch_add(1, Ordering::Relaxed);
        Self(app.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections().fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection of which it is known what it speaks.
struct Greeted {
    stream: Box<dyn Stream>,
    is_http2: bool,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Shakes hands and finds out which HTTP it is; `None` for a client that says nothing in its time.
async fn greet(stream: TcpStream, listening: &Listening, app: &App) -> io::Result<Option<Greeted>> {
    // A client must take some of its answer within this time.
    let write_within = app.live().limits.body_within;
    // Answers are written whole: waiting to fill a packet would only delay their end.
    stream.set_nodelay(true)?;
    let greeting = async {
        let Some(tls) = &listening.tls else {
            let mut stream = stream;
            let (words, is_http2) = first_words(&mut stream).await?;
            let (read, write) = stream.into_split();
            let stream = tokio::io::join(Cursor::new(words).chain(read), Patient::new(write, write_within));
            return Ok(Greeted { stream: Box::new(stream), is_http2 });
        };
        let stream = tls.acceptor().accept(Patient::new(stream, write_within)).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Greeted { stream: Box::new(stream), is_http2 })
    };
    tokio::time::timeout(listening.head_within, greeting).await.ok().transpose()
}

/// Reads until it is known whether it is HTTP/2; gives what was read.
async fn first_words(stream: &mut TcpStream) -> io::Result<(Vec<u8>, bool)> {
    let mut words = Vec::with_capacity(PREFACE.len());
    let may_be_http2 = |words: &[u8]| PREFACE.starts_with(words);
    while words.len() < PREFACE.len() && may_be_http2(&words) {
        let left = (PREFACE.len() - words.len()) as u64;
        if (&mut *stream).take(left).read_buf(&mut words).await? == 0 {
            break;
        }
    }
    let is_http2 = words == PREFACE;
    Ok((words, is_http2))
}

/// Speaks HTTP until the client leaves, is too slow, or the server stops.
async fn speak(
    greeted: Greeted,
    listening: &Listening,
    visitor: Visitor,
    watcher: Watcher,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Pages that may read answers may read refusals too: nothing is before this.
    let cors = option_layer(visitor.site.cors.clone());
    let connection = Arc::clone(&visitor.connection);
    let visitor = Arc::new(visitor);
    let answering = move |request| watched(Arc::clone(&visitor), request);
    let service = TowerToHyperService::new(cors.layer(tower::service_fn(answering)));
    if greeted.is_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(listening.head_within)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(STREAM_HEAD_BYTES_MAX)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES_MAX);
        let stream = TokioIo::new(Metered { stream: greeted.stream, connection: Arc::clone(&connection) });
        tokio::select! {
            spoken = watcher.watch(builder.serve_connection(stream, service)) => spoken?,
            // A library answers pings for a program that has long forgotten the connection.
            leave = connection.has_to_go(Idle::Within(listening.head_within)) => return Err(leave.into()),
        }
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(listening.head_within)
            .max_header_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .max_buf_size(READ_AHEAD_BYTES_MAX);
        let stream = TokioIo::new(greeted.stream);
        tokio::select! {
            spoken = watcher.watch(builder.serve_connection(stream, service)) => spoken?,
            leave = connection.has_to_go(Idle::Any) => return Err(leave.into()),
        }
    }
    Ok(())
}
