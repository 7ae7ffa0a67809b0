//! Signals: SIGTERM and SIGINT stop the server, SIGHUP reads its settings again.
//! The first signal lets requests end; the second ends the process at once.

use std::{io, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{app::App, beside::Beside};
use crate::{console::Console, exit_code::Exit};

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn stopped(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits until the server is told to stop, or what goes on beside it is over, and then for load balancers to learn of it;
    /// meanwhile and from then on another such signal ends the process.
    pub(super) async fn wait(mut self, app: App, console: Console, delay: Duration, mut beside: Option<Beside>) {
        let signal = loop {
            tokio::select! {
                _ = self.terminate.recv() => break Some("SIGTERM"),
                _ = self.interrupt.recv() => break Some("SIGINT"),
                _ = self.hangup.recv() => reload(&app, &console).await,
                () = over(beside.as_mut()) => break None,
            }
        };
        tokio::spawn(async move {
            self.stopped().await;
            std::process::exit(Exit::Interrupted.code().into());
        });
        // Also with `--quiet`: a server that was told to stop is not taken for one that vanished.
        if let Some(signal) = signal {
            tracing::info!(target: "magray::signals", "stopping: {signal} came");
        }
        // What it still sends is still answered.
        match beside {
            Some(beside) => beside.finish().await,
            None => console.note("stopping: requests that were taken are still answered"),
        }
        app.start_draining();
        tokio::time::sleep(delay).await;
    }
}

async fn over(beside: Option<&mut Beside>) {
    match beside {
        Some(beside) => beside.over().await,
        None => std::future::pending().await,
    }
}

async fn reload(app: &App, console: &Console) {
    let own = app.clone();
    match tokio::task::spawn_blocking(move || own.reload()).await {
        // It is in the log.
        Ok(Ok(_)) => {}
        Ok(Err(problem)) => console.warn(problem),
        Err(_) => console.warn("reading the settings again failed"),
    }
}
