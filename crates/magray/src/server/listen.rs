//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them, until the server is told to stop.
//! No client can hold it up: their number, their time and the memory of each are bounded.

use std::{
    error::Error,
    io,
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Request, Version};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tower::{Layer, util::option_layer};

use super::{
    app::App,
    client_stream::ClientStream,
    connections::{Connection, Connections},
    request::HttpService,
    threads::ConnectionThreads,
    tls::Tls,
    unread_bytes::UnreadBytes,
};

pub(crate) struct Listening {
    pub(crate) service: Arc<HttpService>,
    pub(crate) tls: Option<Tls>,
    pub(crate) connections_max: usize,
    /// From the start of a connection, or the end of an answer, to the whole head of the next request.
    pub(crate) head_within: Duration,
}

/// Bytes of a head, and of a body that is read ahead of its handler, on a connection of HTTP/1.1.
const BUFFER_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 100;
/// Requests at once on one connection of HTTP/2, and bytes of each one's head.
const STREAMS_MAX: u32 = 100;
const STREAM_HEAD_BYTES_MAX: u32 = 16 << 10;
/// Bytes of bodies that a client of HTTP/2 may send before they are read: by one request, and by all of a connection.
const WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of an answer that are kept for a client of HTTP/2 in frames; the others wait in the answer itself.
const SEND_BYTES_MAX: usize = 128 << 10;
const PING_AFTER: Duration = Duration::from_secs(20);
/// After a connection could not be accepted: mostly the process has no file descriptor left.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(50);

/// Accepts connections until `stop` is done, then lets requests end that were begun; `false` if some took longer than
/// `drain_within`.
pub(crate) async fn serve(
    listener: TcpListener,
    listening: Listening,
    threads: &ConnectionThreads,
    stop: impl Future<Output = ()>,
    drain_within: Duration,
) -> bool {
    let graceful = GracefulShutdown::new();
    let (stopping, is_stopping) = watch::channel(false);
    let mut connections = Connections::default();
    let builder = Arc::new(http(&listening));
    let app = listening.service.app().clone();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                tracing::warn!(target: "magray::server", %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
                continue;
            }
        };
        if !has_room(app.connections().load(Ordering::Relaxed), listening.connections_max, &connections) {
            // Closed at once: a client that waits would not know why.
            app.metrics().connection_refused();
            continue;
        }
        let unread = Arc::new(UnreadBytes::new(app.admission()));
        let accepted = Accepted {
            connection: connections.add(unread),
            peer,
            service: Arc::clone(&listening.service),
            builder: Arc::clone(&builder),
            watcher: graceful.watcher(),
            is_stopping: is_stopping.clone(),
            _count: ConnectionCount::new(&app),
        };
        let (tls, idle_max) = (listening.tls.clone(), listening.head_within);
        let serving = threads.serve(stream, |stream| async move {
            let connection = Arc::clone(&accepted.connection);
            let ended = tokio::select! {
                served = accepted.serve(stream, tls) => served,
                reason = connection.closed(idle_max) => Err(reason.into()),
            };
            if let Err(error) = ended {
                tracing::debug!(target: "magray::server", error, "a connection ended early");
            }
        });
        if let Err(error) = serving {
            tracing::warn!(target: "magray::server", %error, "a connection could not be served");
        }
    }
    // From here on the system refuses new clients.
    drop(listener);
    stopping.send_replace(true);
    tokio::time::timeout(drain_within, graceful.shutdown()).await.is_ok()
}

/// Whether one more connection is taken; an idle one is closed for it where there are too many.
fn has_room(open: usize, connections_max: usize, connections: &Connections) -> bool {
    const CLOSING_MAX: usize = 64;
    open < connections_max || open < connections_max + CLOSING_MAX && connections.close_longest_idle()
}

struct ConnectionCount(App);

impl ConnectionCount {
    fn new(app: &App) -> Self {
        app.connections().fetch_add(1, Ordering::Relaxed);
        Self(app.clone())
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.connections().fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bounds of both versions of HTTP; which of them a client speaks is told by its first bytes.
fn http(listening: &Listening) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(listening.head_within)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(listening.head_within)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(STREAM_HEAD_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX);
    builder
}

struct Accepted {
    connection: Arc<Connection>,
    peer: IpAddr,
    service: Arc<HttpService>,
    builder: Arc<auto::Builder<TokioExecutor>>,
    watcher: Watcher,
    is_stopping: watch::Receiver<bool>,
    _count: ConnectionCount,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Accepted {
    async fn serve(self, stream: TcpStream, tls: Option<Tls>) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Self { connection, peer, service, builder, watcher, mut is_stopping, _count } = self;
        // Answers are written whole: waiting to fill a packet would only delay their end.
        stream.set_nodelay(true)?;
        let limits = service.app().limits();
        let stream = ClientStream::new(stream, Arc::clone(connection.unread()), limits.body_within);
        let stream = tokio::select! {
            stream = handshake(stream, tls) => stream?,
            _ = is_stopping.wait_for(|is_stopping| *is_stopping) => return Ok(()),
        };
        // Outermost, so that pages that may read answers may read refusals too.
        let cors = option_layer(service.cors());
        let answer = move |request: Request<Incoming>| {
            if request.version() == Version::HTTP_2 {
                connection.unread().hold();
            }
            Arc::clone(&service).answer(Arc::clone(&connection), peer, request)
        };
        let service = TowerToHyperService::new(cors.layer(tower::service_fn(answer)));
        watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await
    }
}

async fn handshake(stream: ClientStream<TcpStream>, tls: Option<Tls>) -> io::Result<Box<dyn Stream>> {
    Ok(match tls {
        Some(tls) => Box::new(tls.acceptor().accept(stream).await?),
        None => Box::new(stream),
    })
}
