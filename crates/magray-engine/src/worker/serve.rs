//! The worker process: opens its device, then answers batches while models come and go beside it.
//! Decides nothing about failures: it reports them, and waits for what the supervisor makes of it.

use super::batches::Batches;
use super::channel::{ChannelError, Incoming, SharedOutgoing};

use super::confine;
use super::holdings::Holdings;
use super::message::{FromWorker, Image, ToSupervisor, ToWorker, VectorOrder};
use super::sandbox::{self, Targets, attempt_all};
use super::serve_error::ServeError;
use super::slots::Slots;
use super::spec::{ReadyMessage, WorkerSpec};
use super::survey;
use super::transfers::Transfers;
use super::vectors::{Searches, VectorJob};
use super::wire::{Garbled, decode, field_of};
use crate::executors::{Executor, Failure, FailureKind, Label};
#[cfg(feature = "testing")]
use crate::testing::WorkerFaults;
use serde::Serialize;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// How often a worker says that it lives.
const HEARTBEAT: Duration = Duration::from_millis(200);
/// How often memory that is not needed any more is looked for.
const TENDING: Duration = Duration::from_secs(1);

/// Runs a worker on the socket that is this process's stdin, until it is told to stop or its supervisor is gone.
///
/// The process must have no thread but the one that calls: the sandbox would not hold for others. `confined` is called when
/// that does not matter any more, for what starts threads.
pub fn serve(confined: impl FnOnce()) -> Result<(), ServeError> {
    confine::drop_privileges();
    // A copy: the descriptor itself stays open until the process is gone, so that the supervisor sees it closed then
    // and not before.
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    if rustix::net::getpeername(&stream).is_err() {
        return Err(ServeError::NoSupervisor);
    }
    let outgoing = SharedOutgoing::new(stream.try_clone()?);
    let mut incoming = Incoming::new(stream.try_clone()?);
    match run(&stream, &mut incoming, &outgoing, confined) {
        // The supervisor is gone: there is no one to tell.
        Err(ServeError::Channel(ChannelError::Closed)) => Ok(()),
        ended => ended,
    }
}

fn run(
    stream: &UnixStream,
    incoming: &mut Incoming,
    outgoing: &SharedOutgoing,
    confined: impl FnOnce(),
) -> Result<(), ServeError> {
    outgoing.send(&ToSupervisor::Hello { pid: std::process::id() })?;
    let spec = match incoming.next()? {
        ToWorker::Open(spec) => spec,
        // Not confined: it reads nothing but the driver, which may want to make its devices first.
        ToWorker::Survey(folders) => {
            confined();
            confine::end_with_supervisor(stream)?;
            return Ok(outgoing.send(&ToSupervisor::Surveyed(&survey::look(folders)?))?);
        }
        _ => return Err(Garbled("something else before what to open").into()),
    };
    let refuse = |failure: Failure| Ok(outgoing.send(&ToSupervisor::NotReady(failure))?);
    let spec = match read_spec(spec) {
        Ok(spec) => spec,
        Err(failure) => return refuse(failure),
    };
    #[cfg(feature = "testing")]
    let faults = match spec.faults.as_ref().map(WorkerFaults::read).transpose() {
        Ok(faults) => faults,
        Err(error) => return refuse(not_understood(error.to_string())),
    };
    // Before the first thread: those that follow inherit it.
    let sandbox = match sandbox::enter(&spec) {
        Ok(sandbox) => sandbox,
        Err(failure) => return refuse(failure),
    };
    confined();
    confine::end_with_supervisor(stream)?;
    let executor = match spec.device.open_within(&spec.models, spec.memory_limit_bytes) {
        Ok(executor) => executor,
        Err(failure) => return refuse(failure),
    };
    let Label { name, uuid } = executor.label();
    let message = written(&ReadyMessage { name, uuid, sandbox });
    outgoing.send(&ToSupervisor::Ready { memory: executor.memory(), message: &message })?;
    let layout = match incoming.next()? {
        ToWorker::Memory(layout) => layout,
        ToWorker::Attempt(targets) => {
            let targets: Targets = decode(targets)?;
            return Ok(outgoing.send(&ToSupervisor::Attempted(&written(&attempt_all(&targets, &spec))))?);
        }
        _ => return Err(Garbled("something else before the memory").into()),
    };
    let fd = incoming.take_fd().ok_or(Garbled("no memory with the message that announced it"))?;
    let slots = Slots::take_over(fd, layout)?;
    let holdings = Arc::new(Holdings::new(spec.device.context_bytes(), spec.models.len()));
    let is_frozen: Box<dyn FnMut() -> bool + Send> = Box::new(|| false);
    #[cfg(feature = "testing")]
    let (executor, is_frozen) = match &faults {
        Some(faults) => (faults.around(executor), faults.freezes()),
        None => (executor, is_frozen),
    };
    start_heartbeats(outgoing.clone(), &executor, Arc::clone(&holdings), is_frozen)?;
    start_tending(&executor)?;
    let mut transfers = Transfers::start(Arc::clone(&executor), &spec, Arc::clone(&holdings), outgoing.clone())?;
    let searches = Searches::start(Arc::clone(&executor), Arc::clone(&holdings), outgoing.clone())?;
    let mut batches = Batches::new(executor, spec.models.len(), slots, outgoing.clone());
    loop {
        while batches.are_under_way() && !incoming.has_next()? {
            batches.collect(incoming.may_spin())?;
        }
        match incoming.next()? {
            ToWorker::Batch(batch) => batches.take(batch)?,
            ToWorker::Begin { sequence, sampling } => batches.begin_sequence(sequence, sampling),
            ToWorker::Turn { batch, steps } => batches.take_turn(batch, &steps)?,
            ToWorker::Free { sequence } => batches.free(sequence),
            ToWorker::Trim => batches.trim()?,
            #[cfg(feature = "testing")]
            ToWorker::Fault(word) => {
                let is_known = faults.as_ref().is_some_and(|faults| faults.order(word));
                is_known.then_some(()).ok_or(Garbled("a fault that it has no plan for"))?;
            }
            #[cfg(not(feature = "testing"))]
            ToWorker::Fault(_) => return Err(Garbled("a fault, and this build injects none").into()),
            ToWorker::Know(model) => {
                let added = batches.executor().add(decode(model)?);
                added.map_err(|_| Garbled("more models than there is room for"))?;
                holdings.add_model().map_err(|_| Garbled("more models than there is room for"))?;
                batches.add_model();
                transfers.add_model();
            }
            ToWorker::Load { model, image } => {
                let fd = if image == Image::None { None } else { incoming.take_fd() };
                transfers.load(model, image, fd)?;
            }
            ToWorker::Offload { model } => transfers.offload(model)?,
            ToWorker::Forget { model } => transfers.forget(model)?,
            ToWorker::Vectors { call, vectors, order } => {
                let fd = if matches!(order, VectorOrder::Hold(_)) { incoming.take_fd() } else { None };
                searches.take(VectorJob { call, vectors, order, fd });
            }
            ToWorker::Stop => {
                let executor = Arc::clone(batches.settled()?);
                drop(transfers);
                // The end of the process frees everything at once; the driver would take its time for each model.
                std::mem::forget(executor);
                return Ok(());
            }
            ToWorker::Open(_) | ToWorker::Survey(_) | ToWorker::Attempt(_) | ToWorker::Memory(_) => {
                return Err(Garbled("an opening after the opening").into());
            }
        }
    }
}

fn read_spec(field: &[u8]) -> Result<WorkerSpec, Failure> {
    let garbled = |Garbled(what)| not_understood(format!("the worker was told what to open by {what}"));
    let spec: WorkerSpec = decode(field).map_err(garbled)?;
    #[cfg(not(feature = "testing"))]
    if spec.faults.is_some() {
        return Err(not_understood("this build injects no faults: build it with the feature `testing`".to_owned()));
    }
    Ok(spec)
}

fn not_understood(message: String) -> Failure {
    Failure::new(FailureKind::Transient, "not_understood", message)
}

fn written(content: &impl Serialize) -> Vec<u8> {
    field_of(content).unwrap_or_else(|error| unreachable!("texts and numbers: {error}"))
}

/// Starts the thread that says that the process lives. That it computes is said by its answers.
fn start_heartbeats(
    outgoing: SharedOutgoing,
    executor: &Arc<dyn Executor>,
    holdings: Arc<Holdings>,
    mut is_frozen: Box<dyn FnMut() -> bool + Send>,
) -> io::Result<()> {
    let executor = Arc::downgrade(executor);
    let beat = move || {
        while let Some(executor) = executor.upgrade() {
            let (memory, accounts) = holdings.measure(|| executor.memory());
            drop(executor);
            let heartbeat = FromWorker::Heartbeat { memory, accounts };
            if !is_frozen() && outgoing.send(&ToSupervisor::Event(heartbeat)).is_err() {
                // The supervisor is gone: the watcher ends the process.
                return;
            }
            std::thread::sleep(HEARTBEAT);
        }
    };
    std::thread::Builder::new().name("heartbeat".to_owned()).spawn(beat)?;
    Ok(())
}

/// Starts the thread that gives back what is not needed any more, now and then.
fn start_tending(executor: &Arc<dyn Executor>) -> io::Result<()> {
    let executor = Arc::downgrade(executor);
    let tend = move || {
        while let Some(executor) = executor.upgrade() {
            executor.tend();
            drop(executor);
            std::thread::sleep(TENDING);
        }
    };
    std::thread::Builder::new().name("tend".to_owned()).spawn(tend)?;
    Ok(())
}
