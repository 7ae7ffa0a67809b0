//! The worker process: opens its device, then answers one batch after the other while models come and go beside it.
//! Decides nothing about failures: it reports them, and waits for what the supervisor makes of it.

use super::channel::{ChannelError, Incoming, Outgoing};
use super::confine;
use super::host::{Host, Refused};
use super::message::{Batch, FromWorker, Image, ToSupervisor, ToWorker, TurnStep};
use super::mishaps::{Mishaps, Planned};
use super::sandbox::{self, Targets, attempt_all};
use super::slots::{Slots, Staged};
use super::spec::{ReadyMessage, WorkerSpec};
use super::survey;
use super::transfers::Transfers;
use super::wire::{Garbled, decode, field_of};
use crate::executors::{Arriving, NewTokens, SequenceStep};
use crate::faults::{FaultKind, Place};
use magray_core::schedule::Failure;
use magray_device::cuda::{CudaError, InjectedFault};
use serde::Serialize;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why a worker ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Somebody started it by hand.
    #[error("`magray worker` is started by magray itself: its input must be a socket")]
    NoSupervisor,
    /// The supervisor talks nonsense, or is of another version.
    #[error("the worker cannot talk to magray: {0}")]
    Channel(#[source] ChannelError),
    /// The system refused a thread or memory.
    #[error("the worker cannot get what it needs from the system: {0}")]
    System(#[from] io::Error),
}

impl From<ChannelError> for ServeError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl From<Garbled> for ServeError {
    fn from(error: Garbled) -> Self {
        Self::Channel(error.into())
    }
}

/// How often a worker says that it lives.
const HEARTBEAT: Duration = Duration::from_millis(200);
/// How often memory that is not needed any more is looked for.
const TENDING: Duration = Duration::from_secs(1);
/// The code of a batch whose model is not on the device.
pub const NOT_LOADED: &str = "not_loaded";
/// How many times as long a slow device takes.
const SLOW_FACTOR: u32 = 8;

type SharedOutgoing = Arc<Mutex<Outgoing>>;

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
    let outgoing = Arc::new(Mutex::new(Outgoing::new(stream.try_clone()?)));
    let mut incoming = Incoming::new(stream.try_clone()?);
    match run(&stream, &mut incoming, &outgoing, confined) {
        // The supervisor is gone, and nobody is left to hear of it.
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
    tell(outgoing, ToSupervisor::Hello { pid: std::process::id() })?;
    let spec = match incoming.next()? {
        ToWorker::Open(spec) => spec,
        // Not confined: it reads nothing but the driver, which may want to make its devices first.
        ToWorker::Survey(folders) => {
            confined();
            confine::end_with_supervisor(stream)?;
            return tell(outgoing, ToSupervisor::Surveyed(&survey::look(folders)?));
        }
        _ => return Err(Garbled("something else before what to open").into()),
    };
    let refuse = |problem: Refused| tell(outgoing, ToSupervisor::NotReady((&problem).into()));
    let (spec, faults) = match read_spec(spec) {
        Ok(read) => read,
        Err(problem) => return refuse(problem),
    };
    // Before the first thread: those that follow inherit it.
    let sandbox = match sandbox::enter(&spec) {
        Ok(sandbox) => sandbox,
        Err(problem) => return refuse(problem),
    };
    confined();
    confine::end_with_supervisor(stream)?;
    let host = match Host::open(&spec) {
        Ok(host) => Arc::new(host),
        Err(problem) => return refuse(problem),
    };
    let message = written(&ReadyMessage { name: host.name.clone(), uuid: host.uuid.clone(), sandbox });
    tell(outgoing, ToSupervisor::Ready { memory: host.memory(), message: &message })?;
    let layout = match incoming.next()? {
        ToWorker::Memory(layout) => layout,
        ToWorker::Attempt(targets) => {
            let targets: Targets = decode(targets)?;
            return tell(outgoing, ToSupervisor::Attempted(&written(&attempt_all(&targets, &spec))));
        }
        _ => return Err(Garbled("something else before the memory").into()),
    };
    let fd = incoming.take_fd().ok_or(Garbled("no memory with the message that announced it"))?;
    let slots = Slots::take_over(fd, layout)?;
    start_heartbeats(Arc::clone(outgoing), &host, Mishaps::new(faults.as_ref(), Place::Heartbeat))?;
    start_tending(&host)?;
    let mishaps = Mishaps::new(faults.as_ref(), Place::Load);
    let transfers = Transfers::start(Arc::clone(&host), Arc::clone(outgoing), mishaps)?;
    let mishaps = Mishaps::new(faults.as_ref(), Place::Batch);
    let mut worker = Worker { host, slots, staged: Staged::default(), rows: Vec::new(), mishaps };
    loop {
        match incoming.next()? {
            ToWorker::Batch(batch) => worker.answer(batch, outgoing)?,
            ToWorker::Turn { batch, steps } => worker.take_turn(batch, &steps, outgoing)?,
            ToWorker::Free { sequence } => worker.host.free(sequence),
            ToWorker::Trim => worker.host.trim(),
            ToWorker::Load { model, image } => {
                let fd = if image == Image::None { None } else { incoming.take_fd() };
                transfers.load(model, image, fd)?;
            }
            ToWorker::Offload { model } => transfers.offload(model)?,
            ToWorker::Forget { model } => transfers.forget(model)?,
            ToWorker::Stop => {
                drop(transfers);
                // The end of the process frees everything at once; the driver would take its time for each model.
                std::mem::forget(Arc::clone(&worker.host));
                return Ok(());
            }
            ToWorker::Open(_) | ToWorker::Survey(_) | ToWorker::Attempt(_) | ToWorker::Memory(_) => {
                return Err(Garbled("an opening after the opening").into());
            }
        }
    }
}

fn read_spec(field: &[u8]) -> Result<(WorkerSpec, Option<Planned>), Refused> {
    let refuse = |message: String| Refused { failure: Failure::Transient, code: "not_understood", message };
    let spec: WorkerSpec =
        decode(field).map_err(|Garbled(what)| refuse(format!("the worker was told what to open by {what}")))?;
    let plan = spec.faults.as_ref().map(Planned::read).transpose();
    let faults = plan.map_err(|error| refuse(error.to_string()))?;
    Ok((spec, faults))
}

fn written(content: &impl Serialize) -> Vec<u8> {
    field_of(content).unwrap_or_else(|error| unreachable!("texts and numbers: {error}"))
}

pub(super) fn tell(outgoing: &Mutex<Outgoing>, message: ToSupervisor<'_>) -> Result<(), ServeError> {
    let mut outgoing = outgoing.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(outgoing.send(&message)?)
}

/// Tells what happened since the opening.
pub(super) fn report(outgoing: &Mutex<Outgoing>, event: FromWorker) -> Result<(), ServeError> {
    tell(outgoing, ToSupervisor::Event(event))
}

/// Starts the thread that says that the process lives. That it computes is said by its answers.
fn start_heartbeats(outgoing: SharedOutgoing, host: &Arc<Host>, mut mishaps: Mishaps) -> io::Result<()> {
    let host = Arc::downgrade(host);
    let beat = move || {
        while let Some(memory) = host.upgrade().map(|host| host.memory()) {
            if !mishaps.is_on(FaultKind::Freeze) && report(&outgoing, FromWorker::Heartbeat { memory }).is_err() {
                // Nobody hears it any more: the watcher ends the process.
                return;
            }
            std::thread::sleep(HEARTBEAT);
        }
    };
    std::thread::Builder::new().name("heartbeat".to_owned()).spawn(beat)?;
    Ok(())
}

/// Starts the thread that gives back what is not needed any more, now and then.
fn start_tending(host: &Arc<Host>) -> io::Result<()> {
    let host = Arc::downgrade(host);
    let tend = move || {
        while let Some(host) = host.upgrade() {
            host.tend();
            drop(host);
            std::thread::sleep(TENDING);
        }
    };
    std::thread::Builder::new().name("tend".to_owned()).spawn(tend)?;
    Ok(())
}

/// How long a batch took, and what came of steps.
type Computed = (Duration, Vec<NewTokens>);

/// What answers batches.
struct Worker {
    host: Arc<Host>,
    slots: Slots,
    staged: Staged,
    rows: Vec<f32>,
    mishaps: Mishaps,
}

impl Worker {
    fn answer(&mut self, batch: Batch, outgoing: &Mutex<Outgoing>) -> Result<(), ServeError> {
        let (name, slot) = (batch.batch, batch.slot as usize);
        self.slots.stage(batch.slot, batch.extent, &mut self.staged)?;
        let event = match self.compute(batch, &[])? {
            Ok((compute, _)) => {
                self.slots.put_rows(slot, &self.rows);
                FromWorker::Finished { batch: name, slot, compute }
            }
            Err(refused) => FromWorker::Failed { batch: name, slot, problem: (&refused).into() },
        };
        report(outgoing, event)
    }

    /// Computes steps of sequences and says what came of them.
    fn take_turn(&mut self, batch: Batch, steps: &[TurnStep], outgoing: &Mutex<Outgoing>) -> Result<(), ServeError> {
        let (name, slot) = (batch.batch, batch.slot as usize);
        self.slots.stage(batch.slot, batch.extent, &mut self.staged)?;
        if steps.len() != batch.extent.texts as usize {
            return Err(Garbled("steps without their tokens").into());
        }
        let event = match self.compute(batch, steps)? {
            Ok((compute, new)) => FromWorker::Turned { batch: name, slot, compute, new },
            Err(refused) => FromWorker::Failed { batch: name, slot, problem: (&refused).into() },
        };
        report(outgoing, event)
    }

    /// Computes the staged batch, or steps where there are some. Says how long that took and what came of steps; the
    /// inner error is the device's.
    fn compute(&mut self, batch: Batch, steps: &[TurnStep]) -> Result<Result<Computed, Refused>, ServeError> {
        let Self { host, staged, rows, mishaps, .. } = self;
        let number = batch.model as usize;
        if number >= host.models() {
            return Err(Garbled("a batch for a model that is not there").into());
        }
        let mut place = host.place(number);
        let Some(model) = place.as_mut().filter(|model| model.accelerator.is_resident()) else {
            return Ok(Err(not_loaded()));
        };
        let began = Instant::now();
        let befalls = mishaps.befall(staged.ids());
        let injected = match befalls.fault {
            Some(FaultKind::Crash) => std::process::abort(),
            Some(FaultKind::OutOfMemory) => Err(CudaError::OutOfMemory.into()),
            Some(FaultKind::Transient) => Err(CudaError::Other { code: 0, name: "planned".to_owned() }.into()),
            Some(FaultKind::IllegalAddress) => model.accelerator.inject(InjectedFault::IllegalAddress),
            Some(FaultKind::Hang) => model.accelerator.inject(InjectedFault::Hang),
            _ => Ok(()),
        };
        if let Err(error) = injected {
            return Ok(Err(error.into()));
        }
        rows.resize(batch.extent.texts as usize * model.accelerator.outputs(), 0.0);
        let arriving = model.accelerator.arriving();
        let (texts, skip) = (staged.texts(), batch.skip as usize);
        let with_tokens = steps.iter().zip(&texts).map(|(step, text)| {
            let TurnStep { sequence, from, new_tokens_max } = *step;
            SequenceStep { sequence, from, ids: text.ids, new_tokens_max }
        });
        let steps: Vec<SequenceStep<'_>> = with_tokens.collect();
        // The wait for weights on their way belongs to their load.
        let (ran, waited) = while_arriving(arriving, || match steps.is_empty() {
            true => model.accelerator.run(&texts, skip, rows).map(|()| Vec::new()),
            false => model.accelerator.advance(&steps),
        });
        if befalls.is_wrong {
            // Still of length 1, as a broken device's may be.
            rows.iter_mut().step_by(2).for_each(|number| *number = -*number);
        }
        if befalls.is_slow {
            std::thread::sleep(began.elapsed() * (SLOW_FACTOR - 1));
        }
        Ok(ran.map(|new| (began.elapsed().saturating_sub(waited), new)).map_err(Refused::from))
    }
}

/// Does something while weights are on their way, if they are; says how long they were.
fn while_arriving<T>(arriving: Option<Arriving>, act: impl FnOnce() -> T) -> (T, Duration) {
    let Some(arriving) = arriving else { return (act(), Duration::ZERO) };
    let began = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            // Whoever needs the weights is told why they do not come.
            let _ = arriving();
            began.elapsed()
        });
        let done = act();
        (done, waiting.join().unwrap_or_default())
    })
}

/// Not the device's fault, and none of the batch: whoever sent it had not waited for the weights.
fn not_loaded() -> Refused {
    let message = "the weights of the model are not on the device".to_owned();
    Refused { failure: Failure::Transient, code: NOT_LOADED, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_wait_for_weights_is_told_apart() {
        assert_eq!(while_arriving(None, || 7), (7, Duration::ZERO));
        let (arrive, arrives) = channel::<()>();
        let arriving: Arriving = Box::new(move || {
            let _ = arrives.recv();
            Ok(())
        });
        let (_, waited) = while_arriving(Some(arriving), || {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(2) {
                std::thread::yield_now();
            }
            drop(arrive);
        });
        assert!(waited >= Duration::from_millis(2), "{waited:?}");
    }
}
