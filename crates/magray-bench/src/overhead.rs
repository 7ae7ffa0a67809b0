//! `magray-bench overhead`: what queue and worker add to the bare pass of one text.
//! Measures both in turn, so that a machine that changes its speed changes both.

use std::{
    sync::mpsc::sync_channel,
    time::{Duration, Instant},
};

use clap::Args;
use magray_engine::{
    DeviceChoice, DeviceName, EncoderOptions, GpuSelector, SingleDevice,
    engine::{Allowed, Engine, Work},
    synthetic::{self, Lengths, Vocabulary},
    testing::SimulatedGpu,
};
use magray_load::Latencies;
use serde::Serialize;

use crate::{
    engine_start::{Measured, start},
    failure::Failure,
    flags::{ModelFlags, seconds},
    terminal::{self, Console, aligned},
};

const EXAMPLES: &str = "\
Examples:
  magray-bench overhead                             on the device that is chosen
  magray-bench overhead --device cuda:0 --tokens 16
  magray-bench overhead --device sim --model synthetic:tiny --json
                                                    a worker without a GPU

One text is computed by the model in this process, then through queue and worker, in turn. \
The difference of the medians is what they add.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct OverheadArgs {
    #[command(flatten)]
    compute: ModelFlags,
    /// Tokens of the text
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    tokens: u32,
    /// How long both are measured, together
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was measured; the names are those of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    tokens: usize,
    runs: u64,
    bare_us: Percentiles,
    /// Until the caller has the answer in hand.
    engine_us: Percentiles,
    /// Until the engine hands it over; the rest is waking the caller.
    answered_us: Percentiles,
    /// Of the medians.
    overhead_us: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
}

/// Runs of one kind before it is the other's turn.
const ROUND: usize = 20;

pub(crate) fn run(args: &OverheadArgs, console: Console) -> Result<(), Failure> {
    let flags = &args.compute;
    let is_simulated = flags.is_simulated();
    let mut options = flags.options()?;
    if is_simulated {
        // A simulated GPU computes as one thread of the CPU does.
        options.threads = Some(1);
    }
    let mut plain = flags.open(flags.plain_device(&options)?, &options)?;
    let text = one_text(args.tokens as usize, &plain)?;
    // The same device in both.
    let (device, allowed) = match plain.device() {
        _ if is_simulated => (DeviceChoice::Auto, Allowed::Gpu),
        DeviceName::Cuda(index) => (DeviceChoice::Cuda(GpuSelector::Index(index)), Allowed::Gpu),
        DeviceName::Cpu | DeviceName::Simulated(_) | DeviceName::Onnx(_) => (DeviceChoice::Cpu, Allowed::Cpu),
    };
    let options = EncoderOptions { device, ..options };
    let mut measured = Measured::new(vec![(flags.model.clone(), flags.source()?)], options);
    if is_simulated {
        measured.simulated_gpus.push(SimulatedGpu::default());
    }
    let engine = start(&measured, console)?;
    let times = measure(&mut plain, &engine, &Subject { text, allowed }, args.seconds);
    engine.shut_down();
    let report = times?.report(measured.name().to_owned(), args.tokens as usize);
    if args.json { terminal::print_json(&report) } else { terminal::print(&table(&report)) }
}

struct Subject {
    text: Vec<u32>,
    allowed: Allowed,
}

fn one_text(tokens: usize, plain: &SingleDevice) -> Result<Vec<u32>, Failure> {
    let tokens_max = plain.spec().max_tokens;
    if tokens > tokens_max {
        return Err(Failure::Usage(format!("--tokens {tokens}: this model reads at most {tokens_max}")));
    }
    let vocabulary = Vocabulary { size: plain.spec().shape.vocab, tokens_max };
    Ok(synthetic::batch(1, Lengths::Equal(tokens), &vocabulary).remove(0))
}

struct Times {
    device: DeviceName,
    bare: Latencies,
    engine: Latencies,
    answered: Latencies,
}

fn measure(plain: &mut SingleDevice, engine: &Engine, subject: &Subject, seconds: f64) -> Result<Times, Failure> {
    let new = || Times {
        device: DeviceName::Cpu,
        bare: Latencies::new(),
        engine: Latencies::new(),
        answered: Latencies::new(),
    };
    let mut times = new();
    let started = Instant::now();
    let mut rounds = 0;
    while rounds < 2 || started.elapsed() < Duration::from_secs_f64(seconds) {
        for _ in 0..ROUND {
            times.take_bare(plain, subject)?;
        }
        for _ in 0..ROUND {
            times.take_engine(engine, subject)?;
        }
        rounds += 1;
        if rounds == 1 {
            // The first round plans buffers, records passes and wakes threads.
            times = new();
        }
    }
    Ok(times)
}

impl Times {
    fn take_bare(&mut self, plain: &mut SingleDevice, subject: &Subject) -> Result<(), Failure> {
        let work = Work::from_ids(0, vec![subject.text.clone()]);
        let started = Instant::now();
        plain.run(&work)?;
        self.bare.record(started.elapsed());
        Ok(())
    }

    fn take_engine(&mut self, engine: &Engine, subject: &Subject) -> Result<(), Failure> {
        let (sender, receiver) = sync_channel(1);
        let work = Work { allowed: subject.allowed, ..Work::from_ids(0, vec![subject.text.clone()]) };
        let started = Instant::now();
        engine.submit(work, move |answer| {
            // The receiver waits below.
            let _ = sender.send((answer, Instant::now()));
        });
        let Ok((answer, at)) = receiver.recv() else {
            return Err(Failure::Broken("the engine lost a request".to_owned()));
        };
        self.engine.record(started.elapsed());
        self.answered.record(at.duration_since(started));
        self.device = answer.map_err(|error| Failure::Broken(format!("the engine did not answer: {error}")))?.device;
        Ok(())
    }

    fn report(&self, model: String, tokens: usize) -> Report {
        let percentiles = |times: &Latencies| {
            let at = |share| times.at(share).as_secs_f64() * 1e6;
            Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
        };
        let (bare_us, engine_us) = (percentiles(&self.bare), percentiles(&self.engine));
        Report {
            model,
            device: self.device.to_string(),
            tokens,
            runs: self.engine.count(),
            bare_us,
            engine_us,
            answered_us: percentiles(&self.answered),
            overhead_us: engine_us.p50 - bare_us.p50,
        }
    }
}

fn table(report: &Report) -> String {
    let head = ["us", "p50", "p90", "p99"].map(str::to_owned).to_vec();
    let row = |name: &str, Percentiles { p50, p90, p99 }: Percentiles| {
        vec![name.to_owned(), format!("{p50:.1}"), format!("{p90:.1}"), format!("{p99:.1}")]
    };
    let rows = [
        head,
        row("bare pass", report.bare_us),
        row("through the engine", report.engine_us),
        row("until the engine answers", report.answered_us),
    ];
    let Report { model, device, tokens, runs, overhead_us, .. } = report;
    format!(
        "{model} on {device}, one text, tokens: {tokens}, runs of each: {runs}\n\n{}\n\
         queue and worker add {overhead_us:.1} us (difference of the medians)\n",
        aligned(&rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_difference_of_the_medians_is_told() {
        let mut times = Times {
            device: DeviceName::Simulated(0),
            bare: Latencies::new(),
            engine: Latencies::new(),
            answered: Latencies::new(),
        };
        for us in [100, 100, 100, 900] {
            times.bare.record(Duration::from_micros(us));
            times.engine.record(Duration::from_micros(us + 50));
            times.answered.record(Duration::from_micros(us + 40));
        }
        let report = times.report("synthetic:tiny".to_owned(), 16);
        assert!((report.overhead_us - 50.0).abs() < 2.0, "{report:?}");
        expect![[r#"
            synthetic:tiny on sim:0, one text, tokens: 16, runs of each: 4

            us                        p50    p90    p99
            bare pass                 100.0  900.1  900.1
            through the engine        150.0  950.3  950.3
            until the engine answers  140.0  940.0  940.0

            queue and worker add 50.0 us (difference of the medians)
        "#]]
        .assert_eq(&table(&report));
    }
}
