//! An executor that fails by plan, around any other.
//! What the plan does not name is done by the executor inside.

use super::{Clock, FaultKind, FaultPlan, FaultPlanError, Place, Script};
use crate::executors::{
    Arrival, Executor, ExecutorModel, Failure, FailureKind, FilledImage, HeldVectors, InjectedFault, Label, OnFilled,
};
use crate::executors::{Outcomes, Steps, UnderWay};
use crate::gpu::{GpuError, MemoryStats};
use crate::packed::Tokens;
use crate::testing::FaultOrder;
use magray_device::SharedMemory;
use magray_device::cuda::CudaError;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The faults of a worker.
#[derive(Debug)]
pub(crate) struct WorkerFaults {
    plan: FaultPlan,
    order: FaultOrder,
    opened: Instant,
    ordered: Ordered,
}

/// Faults that were ordered while the worker runs, each for one batch.
type Ordered = Arc<Mutex<VecDeque<FaultKind>>>;

/// Faults that wait for a batch; more would only pile up while none is sent.
const ORDERED_MAX: usize = 16;

impl WorkerFaults {
    /// Reads the plan that the supervisor sent; its time is now.
    pub(crate) fn read(order: &FaultOrder) -> Result<Self, FaultPlanError> {
        let ordered = Arc::default();
        Ok(Self { plan: order.plan.parse()?, order: order.clone(), opened: Instant::now(), ordered })
    }

    /// Lets a fault happen with the next batch; `false` where there is no such fault of batches.
    pub(crate) fn order(&self, word: &str) -> bool {
        let Some(kind) = FaultKind::parse(word).filter(|kind| kind.place() == Place::Batch) else { return false };
        let mut ordered = self.ordered.lock().unwrap_or_else(PoisonError::into_inner);
        if ordered.len() < ORDERED_MAX {
            ordered.push_back(kind);
        }
        true
    }

    /// The executor with faults of batches and loads.
    pub(crate) fn around(&self, inner: Arc<dyn Executor>) -> Arc<dyn Executor> {
        let [batches, loads] = [Place::Batch, Place::Load].map(|place| Mutex::new(self.script(place)));
        Arc::new(FaultyExecutor { inner, batches, loads, decided: Mutex::default() })
    }

    /// Tells whether heartbeats are held back now.
    pub(crate) fn freezes(&self) -> Box<dyn FnMut() -> bool + Send> {
        let mut script = self.script(Place::Heartbeat);
        Box::new(move || {
            let now = script.now();
            script.script.is_on(FaultKind::Freeze, now)
        })
    }

    fn script(&self, place: Place) -> WorkerScript {
        let Self { plan, order, opened, ordered } = self;
        // Only batches are computed by all GPUs of a group, so that one of them may fail.
        let (script, by_rank) = match place {
            Place::Batch => {
                let of_rank = |rank| (rank, Script::new(&plan.of_rank(Some(rank)), place, order.from));
                let by_rank = plan.ranks().into_iter().map(of_rank).collect();
                (Script::new(&plan.of_rank(None), place, order.from), by_rank)
            }
            _ => (Script::new(plan, place, order.from), Vec::new()),
        };
        let ordered = Arc::clone(ordered);
        WorkerScript { script, by_rank, then: order.now, opened: *opened, batches: order.batches, ordered }
    }
}

/// The faults of one place of a worker.
struct WorkerScript {
    script: Script,
    /// Of a group: what befalls one of its GPUs.
    by_rank: Vec<(usize, Script)>,
    /// The time since the engine's start, when this worker was opened.
    then: Duration,
    opened: Instant,
    batches: u64,
    ordered: Ordered,
}

/// The faults of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BatchFaults {
    /// What happens in the place of computing, or with it.
    fault: Option<FaultKind>,
    /// Which GPU of a group it happens to, counted round them.
    rank: usize,
    is_wrong: bool,
    /// How many times as long it takes.
    slow_times: Option<u32>,
}

impl WorkerScript {
    fn now(&self) -> Duration {
        self.then + self.opened.elapsed()
    }

    fn next_load(&mut self) -> Option<FaultKind> {
        let now = self.now();
        self.script.next_due(Clock { now, batch: 0 })
    }

    fn next_batch(&mut self, steps: Steps<'_>) -> BatchFaults {
        self.batches += 1;
        let clock = Clock { now: self.now(), batch: self.batches };
        let script = &mut self.script;
        let is_poison = match steps {
            Steps::Texts { texts, .. } | Steps::Unscaled { texts, .. } | Steps::EachToken(texts) => {
                texts.iter().any(|text| script.is_poison(text.ids))
            }
            Steps::Parts(parts) => parts.iter().any(|part| script.is_poison(part.ids)),
        };
        let ordered = || self.ordered.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let of_rank = |(rank, script): &mut (usize, Script)| Some((script.next_due(clock)?, *rank));
        // What names no GPU of a group happens to another one each time.
        let any = (clock.batch % u64::from(u32::MAX)) as usize;
        let due = match is_poison {
            true => Some((FaultKind::Crash, any)),
            false => script
                .next_due(clock)
                .or_else(ordered)
                .map(|fault| (fault, any))
                .or_else(|| self.by_rank.iter_mut().find_map(of_rank)),
        };
        let (fault, rank) = due.map_or((None, 0), |(fault, rank)| (Some(fault), rank));
        BatchFaults {
            fault,
            rank,
            is_wrong: fault == Some(FaultKind::Wrong) || script.is_on(FaultKind::Wrong, clock.now),
            slow_times: fault.and_then(FaultKind::slow_times).or_else(|| script.slow_times(clock.now)),
        }
    }
}

struct FaultyExecutor {
    inner: Arc<dyn Executor>,
    batches: Mutex<WorkerScript>,
    loads: Mutex<WorkerScript>,
    /// The faults of a batch that could not be begun beside others, until it is run.
    decided: Mutex<Option<BatchFaults>>,
}

impl FaultyExecutor {
    fn next_batch(&self, steps: Steps<'_>) -> BatchFaults {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).next_batch(steps)
    }

    fn fail_batch(&self, model: usize, fault: FaultKind, rank: usize) -> Result<(), Failure> {
        let planned = |error: CudaError| Err(GpuError::from(error).into());
        match fault {
            FaultKind::Crash => std::process::abort(),
            FaultKind::OutOfMemory => planned(CudaError::OutOfMemory),
            FaultKind::Transient => planned(CudaError::Other { code: 0, name: "planned".to_owned() }),
            FaultKind::IllegalAddress => self.inner.inject(model, InjectedFault::IllegalAddress, rank),
            FaultKind::Hang => self.inner.inject(model, InjectedFault::Hang, rank),
            _ => Ok(()),
        }
    }
}

/// What a load becomes by plan.
fn failed_load(fault: FaultKind) -> Failure {
    let planned = |kind, code| Failure::new(kind, code, format!("planned: {code}"));
    match fault {
        FaultKind::LoadCrash => std::process::abort(),
        FaultKind::LoadHang => loop {
            std::thread::park();
        },
        FaultKind::LoadOutOfMemory => planned(FailureKind::OutOfMemory, "out_of_memory"),
        _ => planned(FailureKind::Transient, "load_failed"),
    }
}

impl Executor for FaultyExecutor {
    fn label(&self) -> Label {
        self.inner.label()
    }

    fn add(&self, model: ExecutorModel) -> Result<(), Failure> {
        self.inner.add(model)
    }

    fn load(&self, model: usize, image: Option<FilledImage>) -> Result<Arrival, Failure> {
        let fault = self.loads.lock().unwrap_or_else(PoisonError::into_inner).next_load();
        fault.map_or_else(|| self.inner.load(model, image), |fault| Err(failed_load(fault)))
    }

    fn offload(&self, model: usize) {
        self.inner.offload(model);
    }

    fn release(&self, model: usize) {
        self.inner.release(model);
    }

    fn run(&self, model: usize, steps: Steps<'_>, outcomes: &mut Outcomes) -> Result<(), Failure> {
        let began = Instant::now();
        let decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner).take();
        let faults = decided.unwrap_or_else(|| self.next_batch(steps));
        if let Some(fault) = faults.fault {
            self.fail_batch(model, fault, faults.rank)?;
        }
        let ran = self.inner.run(model, steps, outcomes);
        if faults.is_wrong {
            // Still of length 1, as a broken device's may be.
            outcomes.rows.iter_mut().step_by(2).for_each(|number| *number = -*number);
        }
        if let Some(times) = faults.slow_times {
            std::thread::sleep(began.elapsed() * (times - 1));
        }
        ran
    }

    fn memory(&self) -> MemoryStats {
        self.inner.memory()
    }

    /// A batch with a fault is computed by itself.
    fn begin(&self, model: usize, texts: &[Tokens<'_>], skip: usize) -> Result<Option<UnderWay>, Failure> {
        let faults = self.next_batch(Steps::Texts { texts, skip });
        let begun = if faults == BatchFaults::default() { self.inner.begin(model, texts, skip)? } else { None };
        if begun.is_none() {
            *self.decided.lock().unwrap_or_else(PoisonError::into_inner) = Some(faults);
        }
        Ok(begun)
    }

    fn is_done(&self, under_way: &UnderWay) -> bool {
        self.inner.is_done(under_way)
    }

    fn finish(&self, under_way: UnderWay, outcomes: &mut Outcomes) -> Result<(), Failure> {
        self.inner.finish(under_way, outcomes)
    }

    fn free(&self, sequence: u64) {
        self.inner.free(sequence);
    }

    fn keep_image(&self, model: usize, image: SharedMemory, on_filled: OnFilled) {
        self.inner.keep_image(model, image, on_filled);
    }

    fn hold_vectors(&self, dims: usize, room: usize) -> Result<Box<dyn HeldVectors>, Failure> {
        self.inner.hold_vectors(dims, room)
    }

    fn rouse(&self) {
        self.inner.rouse();
    }

    fn trim(&self) {
        self.inner.trim();
    }

    fn tend(&self) {
        self.inner.tend();
    }

    fn inject(&self, model: usize, fault: InjectedFault, rank: usize) -> Result<(), Failure> {
        self.inner.inject(model, fault, rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::Tokens;

    #[test]
    fn batches_count_on_from_the_worker_before() {
        let order = FaultOrder {
            plan: "transient@batch=12, wrong@5s+60m, poison@id=7".to_owned(),
            from: Duration::from_secs(6),
            now: Duration::from_secs(7),
            batches: 10,
        };
        let mut script = WorkerFaults::read(&order).unwrap().script(Place::Batch);
        let mut next = |id: u32| {
            let texts = [Tokens { ids: &[id], types: &[] }];
            script.next_batch(Steps::Texts { texts: &texts, skip: 0 })
        };
        let wrong = BatchFaults { is_wrong: true, ..BatchFaults::default() };
        assert_eq!(next(1), wrong);
        assert_eq!(next(1), BatchFaults { fault: Some(FaultKind::Transient), rank: 12, ..wrong });
        assert_eq!(next(7), BatchFaults { fault: Some(FaultKind::Crash), rank: 13, ..wrong });
    }

    #[test]
    fn a_fault_of_a_group_happens_to_the_gpu_that_the_plan_names() {
        let names: Vec<String> = (0..3).map(|at| format!("sim:{at}")).collect();
        let plan: FaultPlan = "sim:2/hang@batch=2, sim:0/illegal_address@batch=3, hang@batch=4".parse().unwrap();
        let plan = plan.of_device(&names).to_string();
        let order = FaultOrder { plan, from: Duration::ZERO, now: Duration::ZERO, batches: 0 };
        let mut script = WorkerFaults::read(&order).unwrap().script(Place::Batch);
        let mut next = || {
            let texts = [Tokens { ids: &[1], types: &[] }];
            let BatchFaults { fault, rank, .. } = script.next_batch(Steps::Texts { texts: &texts, skip: 0 });
            fault.map(|fault| (fault, rank))
        };
        let found = [(); 4].map(|()| next());
        let (hang, address) = (FaultKind::Hang, FaultKind::IllegalAddress);
        assert_eq!(found, [None, Some((hang, 2)), Some((address, 0)), Some((hang, 4))]);
    }

    #[test]
    fn faults_that_are_ordered_befall_one_batch_each() {
        let order = FaultOrder { plan: String::new(), from: Duration::ZERO, now: Duration::from_secs(7), batches: 10 };
        let faults = WorkerFaults::read(&order).unwrap();
        let mut script = faults.script(Place::Batch);
        let mut next = || {
            let texts = [Tokens { ids: &[1], types: &[] }];
            script.next_batch(Steps::Texts { texts: &texts, skip: 0 }).fault
        };
        assert_eq!(next(), None);
        assert!(faults.order("hang") && faults.order("wrong"));
        assert_eq!((next(), next(), next()), (Some(FaultKind::Hang), Some(FaultKind::Wrong), None));
        assert!(!faults.order("kill") && !faults.order("fire"), "no fault of a batch");
        (0..100).for_each(|_| assert!(faults.order("oom")));
        assert_eq!(std::iter::repeat_with(next).take_while(Option::is_some).count(), ORDERED_MAX);
    }
}
