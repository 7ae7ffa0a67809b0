//! Times a run many times over and sums the times up.
//! Does not know what runs.

use std::time::{Duration, Instant};

use serde::Serialize;

/// When measuring ends: after both.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Limits {
    pub(in crate::commands) seconds: f64,
    pub(in crate::commands) runs_min: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(in crate::commands) struct Timing {
    pub(in crate::commands) runs: usize,
    pub(in crate::commands) median_ms: f64,
    pub(in crate::commands) p10_ms: f64,
    pub(in crate::commands) p90_ms: f64,
}

impl Timing {
    pub(in crate::commands) fn take<E>(limits: Limits, mut run: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        // Two runs: the first plans buffers and wakes threads, the second fills the caches.
        run()?;
        run()?;
        let mut times = Vec::new();
        let mut spent = Duration::ZERO;
        while times.len() < limits.runs_min || spent.as_secs_f64() < limits.seconds {
            let started = Instant::now();
            run()?;
            let time = started.elapsed();
            spent += time;
            times.push(time);
        }
        Ok(Self::of(times))
    }

    /// Sums up times; there must be one at least.
    fn of(mut times: Vec<Duration>) -> Self {
        assert!(!times.is_empty(), "nothing was measured");
        times.sort_unstable();
        let at = |share: f64| {
            let position = share * (times.len() - 1) as f64;
            let (low, high) = (times[position.floor() as usize], times[position.ceil() as usize]);
            let between = position.fract();
            (low.as_secs_f64() * (1.0 - between) + high.as_secs_f64() * between) * 1e3
        };
        Self { runs: times.len(), median_ms: at(0.5), p10_ms: at(0.1), p90_ms: at(0.9) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_where_they_should() {
        let times = (1..=11).rev().map(Duration::from_millis).collect();
        let timing = Timing::of(times);
        assert_eq!(timing.runs, 11);
        for (found, expected) in [(timing.median_ms, 6.0), (timing.p10_ms, 2.0), (timing.p90_ms, 10.0)] {
            assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        }
        assert!((Timing::of([1, 2].map(Duration::from_millis).to_vec()).median_ms - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_run_is_warmed_up_and_repeated() {
        let mut runs = 0;
        let timing = Timing::take(Limits { seconds: 0.0, runs_min: 5 }, || {
            runs += 1;
            Ok::<(), ()>(())
        });
        assert_eq!((runs, timing.unwrap().runs), (7, 5));
    }

    #[test]
    fn a_failure_ends_the_measuring() {
        assert_eq!(Timing::take(Limits { seconds: 1.0, runs_min: 5 }, || Err("broken")), Err("broken"));
    }
}
