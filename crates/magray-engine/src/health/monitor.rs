//! Looks at every GPU again and again, judges it and says so.
//! Never sleeps out its interval when it is to stop, and draws no conclusion of its own.

use super::{HealthSample, HealthSource, Judge};
use magray_core::health::HealthRules;
use magray_core::schedule::{Condition, Moment};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How GPUs are watched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MonitorOptions {
    /// How many GPUs the source has.
    pub gpus: usize,
    /// From one look to the next.
    pub interval: Duration,
    /// When a GPU is hot or bad.
    pub rules: HealthRules,
}

impl Default for MonitorOptions {
    /// A GPU that is bad must be out within a second, so it is looked at twice a second.
    fn default() -> Self {
        Self { gpus: 1, interval: Duration::from_millis(500), rules: HealthRules::default() }
    }
}

/// The thread that looks; it ends when this is dropped.
#[derive(Debug)]
pub struct Monitor {
    /// Nothing is ever sent: its end is the sign to stop.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts to look; the first time at once. `tell` is called for every GPU at every look, from the monitor's thread.
    /// Fails where the system gives no thread.
    pub fn start(
        source: Box<dyn HealthSource>,
        options: MonitorOptions,
        tell: impl FnMut(usize, Condition, &HealthSample) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let watching = Watching {
            source,
            interval: options.interval,
            judges: vec![Judge::new(options.rules); options.gpus],
            tell,
        };
        let thread = thread::Builder::new().name("gpu-health".to_owned()).spawn(move || watching.run(&stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(target: "magray::health", "the thread that watches the GPUs has panicked");
        }
    }
}

struct Watching<T> {
    source: Box<dyn HealthSource>,
    interval: Duration,
    judges: Vec<Judge>,
    tell: T,
}

impl<T: FnMut(usize, Condition, &HealthSample)> Watching<T> {
    fn run(mut self, stopped: &Receiver<()>) {
        let started = Instant::now();
        loop {
            let began = Instant::now();
            for gpu in 0..self.judges.len() {
                self.look(gpu, started);
            }
            // What looking took is part of the interval; one that takes longer follows itself at once.
            let rest = self.interval.saturating_sub(began.elapsed());
            if stopped.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn look(&mut self, gpu: usize, started: Instant) {
        let sample = self.source.sample(gpu);
        let passed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let condition = self.judges[gpu].judge(&sample, Moment::from_nanos(passed));
        for remark in sample.remarks() {
            tracing::warn!(target: "magray::health", gpu, "{remark}");
        }
        (self.tell)(gpu, condition, &sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use magray_core::health::ThrottleReasons;
    use magray_core::schedule::Fault;
    use std::sync::mpsc;

    #[test]
    fn every_gpu_is_told_of_at_every_look_with_a_judge_of_its_own() {
        let mut xids = vec![79];
        let source = move |gpu| match gpu {
            // The driver reports a number once; the judge remembers it.
            1 => HealthSample { xids: std::mem::take(&mut xids), ..HealthSample::default() },
            2 => HealthSample { throttle: Some(ThrottleReasons::THERMAL), ..HealthSample::default() },
            _ => HealthSample::default(),
        };
        let options = MonitorOptions { gpus: 3, interval: Duration::from_millis(1), ..MonitorOptions::default() };
        let (sender, told) = mpsc::channel();
        // Once the test has seen enough, it does not listen.
        let tell = move |gpu, condition, _: &HealthSample| sender.send((gpu, condition)).unwrap_or_default();
        let monitor = Monitor::start(Box::new(source), options, tell).unwrap();
        let seen: Vec<_> = told.iter().take(9).collect();
        drop(monitor);
        for (at, (gpu, condition)) in seen.into_iter().enumerate() {
            assert_eq!(gpu, at % 3);
            match gpu {
                0 => assert_eq!(condition, Condition::Fine),
                1 => assert_eq!(condition, Condition::Bad(Fault::Xid(79))),
                _ => assert!(matches!(condition, Condition::Hot { .. }), "{condition:?}"),
            }
        }
    }

    #[test]
    fn dropping_it_ends_the_thread_without_waiting_for_the_next_look() {
        let options = MonitorOptions { interval: Duration::from_secs(1_000_000), ..MonitorOptions::default() };
        let (sender, told) = mpsc::channel();
        let tell = move |gpu, _, _: &HealthSample| sender.send(gpu).unwrap();
        let monitor = Monitor::start(Box::new(|_: usize| HealthSample::default()), options, tell).unwrap();
        assert_eq!(told.recv(), Ok(0), "the first look is at once");
        // Were it to sleep out its interval, this would never return.
        drop(monitor);
        assert!(told.recv().is_err(), "the thread and what it held are gone");
    }
}
