//! Signals of a conversation: Ctrl-C stops the answer that is under way, and ends the program only while the model is loaded.
//! At the prompt it is a key and no signal.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};

use crate::{exit::Failure, exit_code::Exit};

pub(super) struct Signals {
    phase: Arc<Mutex<Phase>>,
}

#[derive(Default)]
enum Phase {
    #[default]
    Loading,
    Waiting,
    Answering(Arc<Notify>),
}

/// An answer that Ctrl-C stops, until this is dropped.
pub(super) struct Stoppable<'a> {
    signals: &'a Signals,
    stop: Arc<Notify>,
}

/// The signals that are watched.
struct Watched {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub(super) fn install() -> Result<Self, Failure> {
        let phase: Arc<Mutex<Phase>> = Arc::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(Failure::Thread)?;
        let watched = runtime.block_on(async { Watched::new() }).map_err(Failure::Thread)?;
        let own = Arc::clone(&phase);
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(move || runtime.block_on(watch(watched, &own))).map_err(Failure::Thread)?;
        Ok(Self { phase })
    }

    /// The model is there: from now on Ctrl-C does not end the program.
    pub(super) fn wait_for_questions(&self) {
        *lock(&self.phase) = Phase::Waiting;
    }

    /// From now on Ctrl-C stops an answer.
    pub(super) fn stoppable(&self) -> Stoppable<'_> {
        let stop: Arc<Notify> = Arc::default();
        *lock(&self.phase) = Phase::Answering(Arc::clone(&stop));
        Stoppable { signals: self, stop }
    }
}

impl Stoppable<'_> {
    pub(super) async fn stopped(&self) {
        self.stop.notified().await;
    }
}

impl Drop for Stoppable<'_> {
    fn drop(&mut self) {
        self.signals.wait_for_questions();
    }
}

impl Watched {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

async fn watch(mut watched: Watched, phase: &Mutex<Phase>) {
    loop {
        tokio::select! {
            _ = watched.interrupt.recv() => match &*lock(phase) {
                Phase::Loading => {}
                Phase::Waiting => continue,
                Phase::Answering(stop) => {
                    stop.notify_one();
                    continue;
                }
            },
            _ = watched.terminate.recv() => {}
            _ = watched.hangup.recv() => {}
        }
        std::process::exit(Exit::Interrupted.code().into());
    }
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}
