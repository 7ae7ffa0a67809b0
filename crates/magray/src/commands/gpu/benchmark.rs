//! `magray gpu benchmark`: CPU and GPU with the same model on the same texts.
//! Measures token ids through the engine, as a server computes them; without a GPU it measures the CPU and says why.

mod plot;

use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use magray_engine::{
    DeviceChoice, DeviceName, EncoderOptions, Refusal,
    engine::{Answer, ModelSource, Work},
    synthetic::{self, Lengths, Vocabulary},
};
use serde::Serialize;

use super::super::{
    Context,
    bench::timing::{Limits, Timing},
};
use crate::{
    commands::compute_args::ComputeArgs,
    config::Config,
    exit::Failure,
    model,
    output::{self, Destination, aligned},
    session::Session,
};

const EXAMPLES: &str = "\
Examples:
  magray gpu benchmark                                  batches of 1 to 512 texts of 128 tokens
  magray gpu benchmark --batch 1,32 --tokens 32 --json
  magray gpu benchmark --plot speed.svg                 also draws the throughput
  magray gpu benchmark --model synthetic:bge-base       a published shape with random weights

Each case is warmed up, then run for --seconds and at least 3 times; the figures follow from the median. \
With a GPU that is named (--device cuda:1) it must be there; otherwise the CPU is measured alone where there is none.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GpuBenchmarkArgs {
    #[command(flatten)]
    compute: ComputeArgs,
    /// Texts of a batch; several sizes make several cases
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,32,128,512",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: Vec<u32>,
    /// Tokens of each text
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536))]
    tokens: u32,
    /// How long each case is measured
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = super::super::bench::seconds)]
    seconds: f64,
    /// Draw the throughput into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The answer; the names are those of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    /// Of each text.
    pub(super) tokens: usize,
    pub(super) cpu: Device,
    pub(super) gpu: Option<Device>,
    /// Why there is no GPU.
    pub(super) gpu_absent: Option<Absent>,
    pub(super) cases: Vec<Case>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub(super) device: String,
    /// The CPU's path, or the GPU's name.
    pub(super) name: String,
    pub(super) precision: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_used_bytes: Option<u64>,
}

/// A reason in words for programs and for people.
#[derive(Debug, Serialize)]
pub(super) struct Absent {
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// One batch size.
#[derive(Debug, Serialize)]
pub(super) struct Case {
    pub(super) batch: usize,
    pub(super) cpu: Measured,
    pub(super) gpu: Option<Measured>,
    /// How many times as fast as the CPU the GPU is.
    pub(super) speedup: Option<f64>,
}

/// The times of one device.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) timing: Timing,
    pub(super) texts_per_s: f64,
}

/// Runs `magray gpu benchmark`.
pub(crate) fn run(args: &GpuBenchmarkArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.compute.flags())?;
    // The file is tried before minutes are spent on what goes into it.
    let plot = args.plot.as_deref().map(|path| Destination::open(Some(path))).transpose()?;
    let report = args.measure(&config, context)?;
    if let Some(mut plot) = plot {
        let drawing = plot::draw(&report);
        plot.checked(|out| out.write_all(drawing.as_bytes()))?;
        plot.finish()?;
    }
    let json = || serde_json::to_string(&report).unwrap_or_else(|error| unreachable!("plain numbers: {error}"));
    Ok(output::print(&if args.json { json() + "\n" } else { report.text() })?)
}

impl GpuBenchmarkArgs {
    fn measure(&self, config: &Config, context: &Context) -> Result<Report, Failure> {
        let options = model::encoder_options(config);
        let bar = context.console.steps_bar(2 * self.batch.len());
        bar.set_prefix("measuring");
        // The GPU first: where it is to be had but cannot be used, the CPU is not measured in vain.
        let source = model::source_named(&config.model()?.name, config, &context.console)?;
        let is_named = matches!(options.device, DeviceChoice::Cuda(_));
        let device = if is_named { options.device.clone() } else { DeviceChoice::Cuda(Default::default()) };
        // A GPU that is measured must not be helped out by the CPU, which naming it makes sure of.
        let on_gpu = EncoderOptions { device, ..options.clone() };
        // The GPU's session lives on: a worker that ends would take time from the CPU that is measured.
        let (gpu, gpu_absent) = match self.run_all(config, on_gpu, source.clone(), &bar, context) {
            Ok(measured) => (Some(measured), None),
            Err(Failure::Device(Refusal { reason, .. })) if !is_named => {
                (None, Some(Absent { code: reason.code(), message: reason.to_string() }))
            }
            Err(failure) => return Err(failure),
        };
        let on_cpu = EncoderOptions { device: DeviceChoice::Cpu, ..options };
        let Run { device: cpu, times: cpu_times, .. } = self.run_all(config, on_cpu, source, &bar, context)?;
        bar.finish_and_clear();
        let gpu_time = |at: usize| gpu.as_ref().and_then(|gpu| gpu.times.get(at)).copied();
        let cases = cpu_times.into_iter().enumerate().map(|(at, cpu)| Case {
            batch: self.batch[at] as usize,
            cpu,
            gpu: gpu_time(at),
            speedup: gpu_time(at).map(|gpu| gpu.texts_per_s / cpu.texts_per_s),
        });
        let (model, cases) = (config.model()?.name, cases.collect());
        let gpu = gpu.map(|run| run.device);
        Ok(Report { model, tokens: self.tokens as usize, cpu, gpu, gpu_absent, cases })
    }

    fn run_all(
        &self,
        config: &Config,
        options: EncoderOptions,
        source: ModelSource,
        bar: &ProgressBar,
        context: &Context,
    ) -> Result<Run, Failure> {
        let session = Session::start(config, options, source, &context.console)?;
        let (tokens, tokens_max) = (self.tokens as usize, session.spec().max_tokens);
        if tokens > tokens_max {
            return Err(Failure::Usage(format!("--tokens {tokens}: this model reads at most {tokens_max}")));
        }
        let vocabulary = Vocabulary { size: session.spec().shape.vocab, tokens_max };
        let limits = Limits { seconds: self.seconds, runs_min: 3 };
        let (mut times, mut last) = (Vec::new(), None);
        for batch in self.batch.iter().map(|batch| *batch as usize) {
            let ids = synthetic::batch(batch, Lengths::Equal(tokens), &vocabulary);
            let timing = Timing::take(limits, || {
                let answer = session.compute(Work::from_ids(0, ids.clone()))?;
                bar.set_message(format!(", {}, batch {batch}", answer.device));
                last = Some(answer);
                Ok::<(), Failure>(())
            })?;
            times.push(Measured { timing, texts_per_s: batch as f64 / (timing.median_ms / 1e3) });
            bar.inc(1);
        }
        let device = last.map(|answer| Device::of(&session, &answer));
        let device = device.unwrap_or_else(|| unreachable!("clap asks for a batch"));
        Ok(Run { device, times, _session: session })
    }
}

struct Run {
    device: Device,
    times: Vec<Measured>,
    _session: Session,
}

impl Device {
    fn of(session: &Session, answer: &Answer) -> Self {
        let status = session.engine().status();
        let is_cpu = answer.device == DeviceName::Cpu;
        let gpu = status.devices.into_iter().find(|known| known.name == answer.device && !is_cpu);
        Self {
            device: answer.device.to_string(),
            precision: answer.precision.to_string(),
            threads: is_cpu.then_some(status.cpu.threads),
            memory_used_bytes: gpu.as_ref().and_then(|gpu| Some(gpu.memory?.allocated)),
            name: gpu.and_then(|gpu| gpu.hardware).unwrap_or_else(|| status.cpu.path.to_string()),
        }
    }

    pub(super) fn label(&self) -> String {
        let threads = self.threads.map_or(String::new(), |threads| format!(", threads: {threads}"));
        format!("{} ({}, {}{threads})", self.device, self.name, self.precision)
    }
}

impl Report {
    fn text(&self) -> String {
        let with_gpu = self.gpu.is_some();
        let mut head = vec!["batch", "cpu ms", "cpu texts/s"];
        if with_gpu {
            head.extend(["gpu ms", "gpu texts/s", "speed-up"]);
        }
        let mut rows = vec![head.into_iter().map(str::to_owned).collect()];
        for case in &self.cases {
            let mut row = vec![case.batch.to_string()];
            for measured in std::iter::once(case.cpu).chain(case.gpu) {
                row.push(format!("{:.3}", measured.timing.median_ms));
                row.push(format!("{:.1}", measured.texts_per_s));
            }
            row.extend(case.speedup.map(|speedup| format!("{speedup:.1}")));
            rows.push(row);
        }
        let on = match (&self.gpu, &self.gpu_absent) {
            (Some(gpu), _) => format!("{}\n{}", self.cpu.label(), gpu.label()),
            (None, Some(absent)) => format!("{}\nno GPU ({}): {}", self.cpu.label(), absent.code, absent.message),
            (None, None) => self.cpu.label(),
        };
        format!("{}, texts of {} tokens\n{on}\n\n{}", self.model, self.tokens, aligned(&rows))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use expect_test::expect;

    pub(in super::super) fn report(with_gpu: bool) -> Report {
        let measured = |batch: usize, median_ms: f64| Measured {
            timing: Timing { runs: 3, median_ms, p10_ms: median_ms, p90_ms: median_ms },
            texts_per_s: batch as f64 / median_ms * 1e3,
        };
        let case = |batch: usize, cpu_ms: f64, gpu_ms: f64| Case {
            batch,
            cpu: measured(batch, cpu_ms),
            gpu: with_gpu.then(|| measured(batch, gpu_ms)),
            speedup: with_gpu.then(|| cpu_ms / gpu_ms),
        };
        let device = |device: &str, name: &str, threads, memory_used_bytes| Device {
            device: device.to_owned(),
            name: name.to_owned(),
            precision: "bf16".to_owned(),
            threads,
            memory_used_bytes,
        };
        Report {
            model: "<tiny> & more".to_owned(),
            tokens: 128,
            cpu: device("cpu", "amx", Some(2), None),
            gpu: with_gpu.then(|| device("cuda:0", "NVIDIA H200", None, Some(1 << 29))),
            gpu_absent: (!with_gpu).then(|| Absent { code: "no_driver", message: "install one".to_owned() }),
            cases: vec![case(1, 4.0, 0.2), case(32, 64.0, 0.5), case(512, 1024.0, 4.0)],
        }
    }

    #[test]
    fn the_table_shows_both_devices_and_the_speed_up() {
        expect![[r#"
            <tiny> & more, texts of 128 tokens
            cpu (amx, bf16, threads: 2)
            cuda:0 (NVIDIA H200, bf16)

            batch  cpu ms    cpu texts/s  gpu ms  gpu texts/s  speed-up
            1      4.000     250.0        0.200   5000.0       20.0
            32     64.000    500.0        0.500   64000.0      128.0
            512    1024.000  500.0        4.000   128000.0     256.0
        "#]]
        .assert_eq(&report(true).text());
    }

    #[test]
    fn without_a_gpu_the_cpu_stands_alone_and_the_reason_beside_it() {
        expect![[r#"
            <tiny> & more, texts of 128 tokens
            cpu (amx, bf16, threads: 2)
            no GPU (no_driver): install one

            batch  cpu ms    cpu texts/s
            1      4.000     250.0
            32     64.000    500.0
            512    1024.000  500.0
        "#]]
        .assert_eq(&report(false).text());
    }
}
