//! `magray-bench alloc`: how fast GPU memory is handed out and taken back, and how much of it is wasted.
//! Touches none of the memory and computes nothing.

mod patterns;
mod report;
mod subject;
mod trace;

use std::path::PathBuf;

use clap::Args;
use magray_engine::{
    DeviceChoice,
    gpu::{self, GpuOptions},
};

use crate::{failure::Failure, terminal};
use patterns::Survivors;
use report::{Report, Waste};
use subject::{OnGpu, Simulated, Subject};
use trace::Trace;

const EXAMPLES: &str = "\
Examples:
  magray-bench alloc                              on the first GPU
  magray-bench alloc --device simulated --json    the pool's arithmetic alone, without a GPU
  magray-bench alloc --trace load.trace           replays what a load took and gave back

A pair is one allocation and one free. First each size alone, then with many blocks alive: one of them, by chance, is \
freed and another of random size is taken, in random order. Each pair is timed by itself; the clock's own time is told \
and not taken off. A trace has a line for each call: `a ID BYTES` takes, `f ID` gives back. Wasted is what was reserved \
at most and never used at once: 1 - peak used / peak reserved.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AllocArgs {
    /// Where: cuda, cuda:NUMBER, cuda:UUID, or simulated
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: String,
    /// Blocks that are alive while random ones are taken; several numbers make several cases
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1000,10000,100000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    live: Vec<u32>,
    /// The largest random block, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    size_max: u32,
    /// Pairs of each case
    #[arg(long, value_name = "N", default_value_t = 200_000,
          value_parser = clap::value_parser!(u32).range(100..=100_000_000))]
    pairs: u32,
    /// Replay this trace instead of the patterns; may be given several times
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Print one JSON object a case
    #[arg(long)]
    json: bool,
}

/// Sizes that are measured alone, in KiB.
const SIZES_KIB: [u64; 7] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];

pub(crate) fn run(args: &AllocArgs) -> Result<(), Failure> {
    // Files are read before a GPU is opened in vain.
    let traces = args.trace.iter().map(|path| Trace::read(path)).collect::<Result<Vec<_>, _>>()?;
    if args.device == "simulated" {
        return args.measure(&Simulated, &traces);
    }
    let choice = match args.device.parse() {
        Ok(choice @ (DeviceChoice::Cuda(_) | DeviceChoice::Auto)) => choice,
        _ => return Err(Failure::Usage(format!("--device {}: use cuda, cuda:NUMBER or simulated", args.device))),
    };
    let found = gpu::find(&choice, &GpuOptions::default()).map_err(Failure::NoGpuToMeasure)?;
    args.measure(&OnGpu { gpu: found }, &traces)
}

impl AllocArgs {
    /// Measures every case, each with memory of its own, so that none finds what another left.
    fn measure(&self, device: &impl subject::Device, traces: &[Trace]) -> Result<(), Failure> {
        let mut report = Report::new(device.name(), patterns::clock_ns());
        let tell = |line: String| if self.json { terminal::print(&(line + "\n")) } else { Ok(()) };
        tell(report.head_json())?;
        if traces.is_empty() {
            for kib in SIZES_KIB {
                let pairs = patterns::one_size(&mut device.open()?, kib << 10, self.pairs as usize)?;
                tell(report.add_pairs(pairs))?;
            }
            for live in &self.live {
                let many = patterns::Many {
                    live: *live as usize,
                    bytes_max: u64::from(self.size_max) << 10,
                    pairs: self.pairs as usize,
                };
                tell(report.add_pairs(patterns::many_alive(&mut device.open()?, &many)?))?;
            }
            for survivors in [Survivors::GoNextRound, Survivors::Stay] {
                let mut subject = device.open()?;
                patterns::survivors(&mut subject, survivors)?;
                tell(report.add_waste(Waste::of(survivors.name().to_owned(), &subject.stats())))?;
            }
        }
        for trace in traces {
            let mut subject = device.open()?;
            trace.replay(&mut subject)?;
            tell(report.add_waste(Waste::of(trace.name.clone(), &subject.stats())))?;
        }
        if !self.json {
            terminal::print(&report.tables())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use subject::Device;

    #[test]
    fn all_patterns_run_on_a_simulated_device() {
        let pairs = patterns::one_size(&mut Simulated.open().unwrap(), 64 << 10, 500).unwrap();
        assert_eq!((pairs.case.as_str(), pairs.pairs, pairs.driver_calls), ("64 KiB", 500, 0));
        assert!(pairs.p50_ns <= pairs.p99_ns);
        let many = patterns::Many { live: 300, bytes_max: 256 << 10, pairs: 1000 };
        let pairs = patterns::many_alive(&mut Simulated.open().unwrap(), &many).unwrap();
        assert_eq!((pairs.case.as_str(), pairs.pairs), ("300 alive, up to 256 KiB", 1000));
    }

    #[test]
    fn survivors_waste_little() {
        for survivors in [Survivors::GoNextRound, Survivors::Stay] {
            let mut subject = Simulated.open().unwrap();
            patterns::survivors(&mut subject, survivors).unwrap();
            let waste = Waste::of(survivors.name().to_owned(), &subject.stats());
            assert!(waste.wasted < 0.02, "{waste:?}");
        }
    }
}
