//! `magray bench embed`: how fast this machine embeds.
//! Measures plain passes of the model in this process: no tokenizer, no queue, no worker, no start-up.

pub(crate) mod generate;
mod ids_file;
pub(super) mod timing;

use std::path::PathBuf;

use clap::Args;
use magray_engine::{
    DeviceName, EncoderOptions, LoadError, Reason, SingleDevice, Verdict,
    engine::{ModelSource, Outlook, Work},
    synthetic::{self, Lengths, Vocabulary},
};
use serde::Serialize;

use super::Context;
use crate::{
    commands::compute_args::ComputeArgs,
    config::Config,
    console::Console,
    exit::Failure,
    model,
    output::{self, Destination, Npy, Sink, aligned},
    session::tell_precision,
};
use timing::{Limits, Timing};

const EXAMPLES: &str = "\
Examples:
  magray bench embed                                  batches of 1 and 32 texts of 128 tokens
  magray bench embed --batch 32 --ragged              texts of many lengths, as people write them
  magray bench embed --model synthetic:bge-base       a published shape with random weights
  magray bench embed --ids batch.json --json          exactly the token ids of this file: [[101, 102], ...]

Each case is warmed up, then run for --seconds and at least 5 times. \
The table shows the median and the 10th and 90th percentile of a run; \
texts/s, tokens/s and TFLOP/s follow from the median.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    compute: ComputeArgs,
    /// Texts of a batch; several sizes make several cases
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,32", conflicts_with = "ids",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: Vec<u32>,
    /// Tokens of each text
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with_all = ["ragged", "ids"],
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    tokens: u32,
    /// Texts of many lengths (log-normal, 5 to 256 tokens, the same in every run)
    #[arg(long, conflicts_with = "ids")]
    ragged: bool,
    /// Take the token ids from this file: a JSON array of arrays
    #[arg(long, value_name = "FILE.json")]
    ids: Option<PathBuf>,
    /// Write the vectors of the --ids batch to this file
    #[arg(long, value_name = "FILE.npy", requires = "ids")]
    vectors: Option<PathBuf>,
    /// How long each case is measured
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object a case
    #[arg(long)]
    json: bool,
}

/// One measured case; the names are those of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<String>,
    /// Why the CPU computed although a GPU was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<&'static str>,
    cpu_path: String,
    precision: String,
    threads: usize,
    batch: usize,
    /// Of the whole batch.
    tokens: usize,
    ragged: bool,
    #[serde(flatten)]
    timing: Timing,
    texts_per_s: f64,
    tokens_per_s: f64,
    tflops: f64,
}

pub(crate) fn run(args: &BenchArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.compute.flags())?;
    // The file is read before the model is loaded in vain.
    let given = args.ids.as_deref().map(ids_file::read_ids).transpose()?;
    let name = config.model()?.name;
    let mut measured = PlainModel::open(name, &config, &context.console)?;
    let cases = match given {
        Some(ids) => vec![ids],
        None => args.make_batches(&measured.model)?,
    };
    let mut reports = Vec::new();
    for ids in &cases {
        let report = measured.measure(ids, args.seconds)?;
        if args.json {
            let line = serde_json::to_string(&report).unwrap_or_else(|error| unreachable!("plain numbers: {error}"));
            output::print(&(line + "\n"))?;
        }
        reports.push(report);
    }
    if let (Some(path), [ids]) = (&args.vectors, cases.as_slice()) {
        let dimensions = measured.model.spec().outputs();
        let mut npy = Npy::start(Sink::Once(Destination::open(Some(path))?))?;
        let rows = measured.model.run(&Work::from_ids(0, ids.clone()))?;
        rows.chunks_exact(dimensions).try_for_each(|row| npy.write_row(row))?;
        npy.finish()?;
    }
    if !args.json {
        output::print(&table(&reports, &measured.describe()))?;
    }
    Ok(())
}

impl BenchArgs {
    fn make_batches(&self, model: &SingleDevice) -> Result<Vec<Vec<Vec<u32>>>, Failure> {
        let (tokens, tokens_max) = (self.tokens as usize, model.spec().max_tokens);
        if !self.ragged && tokens > tokens_max {
            return Err(Failure::Usage(format!("--tokens {tokens}: this model reads at most {tokens_max}")));
        }
        let lengths = if self.ragged { Lengths::Ragged } else { Lengths::Equal(tokens) };
        let vocabulary = Vocabulary { size: model.spec().shape.vocab, tokens_max };
        Ok(self.batch.iter().map(|texts| synthetic::batch(*texts as usize, lengths, &vocabulary)).collect())
    }
}

struct PlainModel {
    name: String,
    model: SingleDevice,
    fallback: Option<Reason>,
}

impl PlainModel {
    /// Loads the model on the device that an engine would choose.
    fn open(name: String, config: &Config, console: &Console) -> Result<Self, Failure> {
        let (options, source) = (model::encoder_options(config), model::source_named(&name, config, console)?);
        let Verdict { device, reason } =
            choose(&source, &options).map_err(|error| model::load_failure(&name, error))?;
        let model = SingleDevice::open(&source, device, &options).map_err(|error| model::load_failure(&name, error))?;
        console.detail(format_args!("computing on {device}: {reason}"));
        tell_precision(device, model.precision(), &options, console);
        let fallback = Some(reason).filter(Reason::is_fallback);
        if let Some(reason) = &fallback {
            console.warn(format_args!("the CPU computes in place of the GPU ({}): {reason}", reason.code()));
        }
        Ok(Self { name, model, fallback })
    }

    fn measure(&mut self, ids: &[Vec<u32>], seconds: f64) -> Result<Report, Failure> {
        let work = Work::from_ids(0, ids.to_vec());
        let model = &mut self.model;
        let timing = Timing::take(Limits { seconds, runs_min: 5 }, || model.run(&work).map(drop))?;
        let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
        let tokens: usize = lengths.iter().sum();
        let per_second = |amount: f64| amount / (timing.median_ms / 1e3);
        Ok(Report {
            model: self.name.clone(),
            device: model.device().to_string(),
            gpu: model.gpu().map(|gpu| gpu.name.clone()),
            fallback: self.fallback.as_ref().map(Reason::code),
            cpu_path: model.cpu_path().to_string(),
            precision: model.precision().to_string(),
            threads: model.threads(),
            batch: ids.len(),
            tokens,
            ragged: lengths.iter().any(|length| *length != lengths[0]),
            texts_per_s: per_second(ids.len() as f64),
            tokens_per_s: per_second(tokens as f64),
            tflops: per_second(model.spec().shape.flops(&lengths) as f64) / 1e12,
            timing,
        })
    }

    fn describe(&self) -> String {
        let (device, precision) = (self.model.device(), self.model.precision());
        match self.model.gpu() {
            Some(gpu) => format!("{device} ({}, {precision})", gpu.name),
            None if matches!(device, DeviceName::Onnx(_)) => format!("{device} (ONNX Runtime, {precision})"),
            None => format!("{device} ({}, {precision}, threads: {})", self.model.cpu_path(), self.model.threads()),
        }
    }
}

fn choose(source: &ModelSource, options: &EncoderOptions) -> Result<Verdict, LoadError> {
    let known = source.folder().is_some().then_some(source);
    Ok(Outlook::without_engine(known, options)?.verdict?)
}

fn table(reports: &[Report], on: &str) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let head = ["batch", "tokens", "runs", "median ms", "p10", "p90", "texts/s", "tokens/s", "TFLOP/s"];
    let cells = |report: &Report| {
        let Timing { runs, median_ms, p10_ms, p90_ms } = report.timing;
        vec![
            report.batch.to_string(),
            format!("{}{}", report.tokens, if report.ragged { " ragged" } else { "" }),
            runs.to_string(),
            format!("{median_ms:.3}"),
            format!("{p10_ms:.3}"),
            format!("{p90_ms:.3}"),
            format!("{:.1}", report.texts_per_s),
            format!("{:.0}", report.tokens_per_s),
            format!("{:.3}", report.tflops),
        ]
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(head.map(str::to_owned).to_vec()).chain(reports.iter().map(cells)).collect();
    format!("{} on {on}\n\n{}", first.model, aligned(&rows))
}

pub(in crate::commands) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if (0.0..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("use 0 to 3600 seconds".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_table_lines_up() {
        let report = |batch, ragged| Report {
            model: "tiny".to_owned(),
            device: "cpu".to_owned(),
            gpu: None,
            fallback: None,
            cpu_path: "amx".to_owned(),
            precision: "bf16".to_owned(),
            threads: 2,
            batch,
            tokens: batch * 128,
            ragged,
            timing: Timing { runs: 7, median_ms: 1.5, p10_ms: 1.25, p90_ms: 2.0 },
            texts_per_s: 666.67,
            tokens_per_s: 85333.0,
            tflops: 1.25,
        };
        expect![[r#"
            tiny on cpu (amx, bf16, threads: 2)

            batch  tokens       runs  median ms  p10    p90    texts/s  tokens/s  TFLOP/s
            1      128          7     1.500      1.250  2.000  666.7    85333     1.250
            32     4096 ragged  7     1.500      1.250  2.000  666.7    85333     1.250
        "#]]
        .assert_eq(&table(&[report(1, false), report(32, true)], "cpu (amx, bf16, threads: 2)"));
    }

    #[test]
    fn seconds_are_checked() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for bad in ["-1", "nan", "x", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
