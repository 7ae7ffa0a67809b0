//! The command line of `magray-bench load`: what may be asked for, and the cases that follow from it.
//! Checks only what needs neither a model nor an engine.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use magray_engine::{
    engine::{Batching, Placement, Sizing},
    testing::{FaultPlan, SimulatedGpu},
};

use magray_load::{Load, Poison, Sending};

use super::report::Case;
use crate::{
    failure::Failure,
    flags::{ModelFlags, seconds},
};

/// An answer that takes longer than this after the end is lost.
const LOST_AFTER: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  magray-bench load                                     16 callers that wait for their answers
  magray-bench load --rate 200,2000 --check             requests a second, every answer checked
  magray-bench load --rate 2000 --batching adaptive,1:0,32:5 --placement weighted,round-robin
                                                        each with each: six cases, one table
  magray-bench load --simulated-gpus 1::4,1::1 --model synthetic:tiny
                                                        two workers, one four times as fast, no GPU needed
  magray-bench load --simulated-gpus 2 --model synthetic:tiny --check --faults 'kill@2s'
                                                        a fault, and proof that it lost nothing

Requests of a --rate are sent by a schedule (Poisson, by --seed), whatever the answers do, and latency counts from \
the moment that the schedule names, so that neither a slow engine nor a slow generator flatters the figures. \
The last column tells how late the generator itself was. \
With --check every answer is compared with the vector that the CPU gives for its text in f32. \
Exit code 1 if a request was lost, answered twice, answered wrongly or refused without reason.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(super) compute: ModelFlags,
    /// Requests a second, sent by a schedule; several make several cases
    #[arg(long, value_name = "R,..", value_delimiter = ',', conflicts_with = "clients", value_parser = rate)]
    pub(super) rate: Vec<f64>,
    /// Callers that wait for their answer before they ask again; several numbers make several cases
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "16",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(super) clients: Vec<u32>,
    /// How long each case is measured
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = measured_seconds)]
    pub(super) seconds: f64,
    /// How long each case runs before that; its answers are checked too
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub(super) warmup: f64,
    /// Texts of a request
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) texts: u32,
    /// Tokens of each text
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "ragged",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(super) tokens: u32,
    /// Texts of many lengths (log-normal, 5 to 256 tokens)
    #[arg(long)]
    pub(super) ragged: bool,
    /// How batches are formed: adaptive or TEXTS:TIMEOUT_MS; several make several cases
    #[arg(long, value_name = "HOW,..", value_delimiter = ',', default_value = "adaptive", value_parser = batching)]
    pub(super) batching: Vec<NamedBatching>,
    /// How a device is picked: weighted or round-robin; several make several cases
    #[arg(long, value_name = "HOW,..", value_delimiter = ',', default_value = "weighted", value_parser = placement)]
    pub(super) placement: Vec<NamedPlacement>,
    /// Workers that behave like GPUs and compute on the CPU: how many, MB of memory, and speed of each (1: 1 ms a batch
    /// and 10 us a token; left out: as fast as the CPU)
    #[arg(long, value_name = "N[:MB[:SPEED]],..", value_delimiter = ',', value_parser = simulated)]
    pub(super) simulated_gpus: Vec<Simulated>,
    /// Faults to happen while the load runs, such as 'kill@2s,hang@5s'
    #[arg(long, value_name = "PLAN")]
    pub(super) faults: Option<String>,
    /// How often a request holds the token of a planned poison
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = measured_seconds)]
    pub(super) poison_every: f64,
    /// Compare every answer with the right vector
    #[arg(long)]
    pub(super) check: bool,
    /// Refuse requests that are not answered within this time
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub(super) deadline_ms: Option<u64>,
    /// Count also requests that were refused for want of room or of time as faults
    #[arg(long)]
    pub(super) strict: bool,
    /// Write what is taken of the GPU's memory and given back to this file, for `magray-bench alloc --trace`
    #[arg(long, value_name = "FILE")]
    pub(super) memory_trace: Option<PathBuf>,
    /// Print one JSON object a case
    #[arg(long)]
    pub(super) json: bool,
    /// Repeats moments and texts of a run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) sending: Sending,
    pub(super) batching: NamedBatching,
    pub(super) placement: NamedPlacement,
}

impl LoadArgs {
    /// Every kind of sending with every way to form batches and to pick devices.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let sendings: Vec<Sending> = match self.rate.is_empty() {
            true => self.clients.iter().map(|clients| Sending::Closed { clients: *clients as usize }).collect(),
            false => self.rate.iter().map(|rate| Sending::Open { rate: *rate }).collect(),
        };
        let mut settings = Vec::new();
        for sending in sendings {
            for placement in &self.placement {
                let each = |batching: &NamedBatching| Setting { sending, batching: *batching, placement: *placement };
                settings.extend(self.batching.iter().map(each));
            }
        }
        settings
    }

    pub(super) fn plan(&self) -> Result<Option<FaultPlan>, Failure> {
        let parse = |text: &String| text.parse().map_err(|error| Failure::Usage(format!("--faults: {error}")));
        self.faults.as_ref().map(parse).transpose()
    }

    pub(super) fn poison(&self) -> Option<Poison> {
        let entries = self.faults.as_deref().unwrap_or_default().split([',', ';']).map(str::trim);
        let behind_device = |entry: &'_ str| entry.split_once('/').map_or(entry, |(_, entry)| entry).to_owned();
        let token = |entry: String| entry.strip_prefix("poison@id=")?.parse().ok();
        let token = entries.map(behind_device).find_map(token)?;
        Some(Poison { token, every: Duration::from_secs_f64(self.poison_every) })
    }

    pub(super) fn simulated(&self) -> Vec<SimulatedGpu> {
        let kinds = self.simulated_gpus.iter().flat_map(|kind| std::iter::repeat_n(kind, kind.count));
        kinds.enumerate().map(|(index, kind)| kind.gpu(index)).collect()
    }

    pub(super) fn load(&self, setting: &Setting) -> Load {
        let expected = match (self.strict, self.deadline_ms) {
            (true, _) => vec![],
            (false, None) => vec!["full"],
            (false, Some(_)) => vec!["full", "expired"],
        };
        Load {
            sending: setting.sending,
            texts: self.texts as usize,
            warmup: Duration::from_secs_f64(self.warmup),
            measured: Duration::from_secs_f64(self.seconds),
            requests_max: u64::MAX,
            seed: self.seed,
            expected,
            poison: self.poison(),
            lost_after: LOST_AFTER,
            stop: Arc::default(),
        }
    }

    pub(super) fn case(&self, setting: &Setting, model: &str) -> Case {
        let (rate, clients) = match setting.sending {
            Sending::Open { rate } => (Some(rate), None),
            Sending::Closed { clients } => (None, Some(clients)),
        };
        Case {
            model: model.to_owned(),
            rate,
            clients,
            batching: setting.batching.to_string(),
            placement: setting.placement.to_string(),
            texts: self.texts as usize,
            seed: self.seed,
            checked: self.check,
            seconds: self.seconds,
        }
    }
}

/// Its name on the command line is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamedBatching(pub(super) Sizing);

impl NamedBatching {
    pub(super) fn options(self) -> Batching {
        let normal = Batching::default();
        let texts_max = match self.0 {
            Sizing::Adaptive => normal.texts_max,
            Sizing::Fixed { texts, .. } => normal.texts_max.max(texts),
        };
        Batching { sizing: self.0, texts_max, ..normal }
    }
}

impl fmt::Display for NamedBatching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Sizing::Adaptive => f.pad("adaptive"),
            Sizing::Fixed { texts, timeout } => f.pad(&format!("{texts}:{}", timeout.as_secs_f64() * 1e3)),
        }
    }
}

/// Its name on the command line is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamedPlacement(pub(super) Placement);

impl fmt::Display for NamedPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.0 {
            Placement::Weighted => "weighted",
            Placement::RoundRobin => "round-robin",
        })
    }
}

/// Some simulated GPUs of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Simulated {
    pub(super) count: usize,
    /// `None`: as much as it wants.
    pub(super) memory_mb: Option<u64>,
    /// `None`: as fast as the CPU computes.
    pub(super) speed: Option<f64>,
}

impl Simulated {
    /// One of them. At speed 1 a batch takes 1 ms, and 10 us for each of its tokens.
    fn gpu(&self, index: usize) -> SimulatedGpu {
        let normal = SimulatedGpu::default();
        SimulatedGpu {
            index,
            memory_bytes: self.memory_mb.map_or(normal.memory_bytes, |mb| mb.saturating_mul(1_000_000)),
            batch_us: self.speed.map_or(normal.batch_us, |speed| (1_000.0 / speed) as u64),
            token_ns: self.speed.map_or(normal.token_ns, |speed| (10_000.0 / speed) as u64),
            ..normal
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.strip_suffix("/s").unwrap_or(text).parse().map_err(|_| not_a_number(text))?;
    if (0.1..=1e6).contains(&rate) { Ok(rate) } else { Err("use 0.1 to 1000000 requests a second".to_owned()) }
}

fn measured_seconds(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        seconds if seconds >= 0.01 => Ok(seconds),
        _ => Err("use 0.01 to 3600 seconds".to_owned()),
    }
}

fn batching(text: &str) -> Result<NamedBatching, String> {
    if text == "adaptive" {
        return Ok(NamedBatching(Sizing::Adaptive));
    }
    let wrong = || format!("'{text}' is neither 'adaptive' nor TEXTS:TIMEOUT_MS, such as 32:5");
    let (texts, timeout) = text.split_once(':').ok_or_else(wrong)?;
    let texts: u32 = texts.parse().map_err(|_| wrong())?;
    let timeout_ms: f64 = timeout.parse().map_err(|_| wrong())?;
    if !(1..=65536).contains(&texts) || !(0.0..=10_000.0).contains(&timeout_ms) {
        return Err("use 1 to 65536 texts and 0 to 10000 ms".to_owned());
    }
    Ok(NamedBatching(Sizing::Fixed { texts, timeout: Duration::from_secs_f64(timeout_ms / 1e3) }))
}

fn placement(text: &str) -> Result<NamedPlacement, String> {
    match text.replace('_', "-").as_str() {
        "weighted" => Ok(NamedPlacement(Placement::Weighted)),
        "round-robin" => Ok(NamedPlacement(Placement::RoundRobin)),
        _ => Err(format!("'{text}' is neither 'weighted' nor 'round-robin'")),
    }
}

fn simulated(text: &str) -> Result<Simulated, String> {
    let wrong = || format!("'{text}' is not N[:MB[:SPEED]], such as 2, 2:512 or 1::4");
    let parts: Vec<&str> = text.split(':').collect();
    let (count, memory, speed) = match parts.as_slice() {
        [count] => (*count, "", ""),
        [count, memory] => (*count, *memory, ""),
        [count, memory, speed] => (*count, *memory, *speed),
        _ => return Err(wrong()),
    };
    let count: usize = count.parse().map_err(|_| wrong())?;
    let memory_mb: Option<u64> = given(memory).map(str::parse).transpose().map_err(|_| wrong())?;
    let speed: Option<f64> = given(speed).map(str::parse).transpose().map_err(|_| wrong())?;
    if !(1..=16).contains(&count) {
        return Err("use 1 to 16 simulated GPUs".to_owned());
    }
    if memory_mb == Some(0) || speed.is_some_and(|speed| !(0.001..=1000.0).contains(&speed)) {
        return Err("use at least 1 MB, and speeds from 0.001 to 1000".to_owned());
    }
    Ok(Simulated { count, memory_mb, speed })
}

fn given(part: &str) -> Option<&str> {
    (!part.is_empty()).then_some(part)
}

fn not_a_number(text: &str) -> String {
    format!("'{text}' is not a number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};
    use expect_test::expect;

    fn parse(args: &[&str]) -> Result<LoadArgs, String> {
        let command = LoadArgs::augment_args(Command::new("load").no_binary_name(true));
        let matches = command.try_get_matches_from(args).map_err(|error| error.to_string())?;
        LoadArgs::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    fn cases(args: &[&str]) -> Vec<String> {
        let setting =
            |Setting { sending, batching, placement }: &Setting| format!("{sending:?} {batching} {placement}");
        parse(args).unwrap().settings().iter().map(setting).collect()
    }

    #[test]
    fn every_combination_is_a_case() {
        assert_eq!(cases(&[]), ["Closed { clients: 16 } adaptive weighted"]);
        assert_eq!(cases(&["--clients", "1,2"]).len(), 2);
        let args = ["--rate", "10,2e3/s", "--batching", "adaptive,32:5,8:0.5", "--placement", "weighted,round_robin"];
        let found = cases(&args);
        assert_eq!(found.len(), 12);
        assert_eq!(found[0], "Open { rate: 10.0 } adaptive weighted");
        assert_eq!(found[5], "Open { rate: 10.0 } 8:0.5 round-robin");
        assert_eq!(found[11], "Open { rate: 2000.0 } 8:0.5 round-robin");
    }

    #[test]
    fn a_fixed_batch_may_be_larger_than_the_usual_bound() {
        let options = batching("1000:2").unwrap().options();
        assert_eq!(
            (options.texts_max, options.sizing),
            (1000, Sizing::Fixed { texts: 1000, timeout: Duration::from_millis(2) })
        );
        assert_eq!(batching("8:0").unwrap().options().texts_max, Batching::default().texts_max);
        assert_eq!(batching("adaptive").unwrap().options(), Batching::default());
    }

    #[test]
    fn simulated_gpus_of_several_kinds() {
        let args = parse(&["--simulated-gpus", "2,1:512,1::0.25"]).unwrap();
        let of = |count, memory_mb, speed| Simulated { count, memory_mb, speed };
        assert_eq!(args.simulated_gpus, [of(2, None, None), of(1, Some(512), None), of(1, None, Some(0.25))]);
    }

    #[test]
    fn faster_gpus_take_less_time() {
        let gpus = parse(&["--simulated-gpus", "1:512:4,2"]).unwrap().simulated();
        let seen: Vec<_> = gpus.iter().map(|gpu| (gpu.index, gpu.memory_bytes, gpu.batch_us, gpu.token_ns)).collect();
        let memory = SimulatedGpu::default().memory_bytes;
        assert_eq!(seen, [(0, 512_000_000, 250, 2500), (1, memory, 0, 0), (2, memory, 0, 0)]);
    }

    #[test]
    fn a_plan_with_poison_names_its_token() {
        let args = parse(&["--faults", "kill@2s; sim:0/poison@id=77,hang@3s", "--poison-every", "2"]).unwrap();
        assert!(args.plan().unwrap().is_some());
        assert_eq!(args.poison(), Some(Poison { token: 77, every: Duration::from_secs(2) }));
        assert_eq!(parse(&["--faults", "kill@2s"]).unwrap().poison(), None);
        let message = parse(&["--faults", "fire@2s"]).unwrap().plan().unwrap_err().to_string();
        assert!(message.starts_with("--faults: ") && message.contains("fire"), "{message}");
    }

    #[test]
    fn only_a_strict_load_minds_refusals_for_want_of_room() {
        let expected = |args: &[&str]| {
            let args = parse(args).unwrap();
            args.load(&args.settings()[0]).expected
        };
        assert_eq!(expected(&[]), ["full"]);
        assert_eq!(expected(&["--deadline-ms", "5"]), ["full", "expired"]);
        assert_eq!(expected(&["--deadline-ms", "5", "--strict"]), [""; 0]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        let first_line = |args: &[&str]| parse(args).unwrap_err().lines().next().unwrap_or_default().to_owned();
        let refused: Vec<String> = [
            &["--rate", "fast"][..],
            &["--rate", "0"],
            &["--rate", "1e9"],
            &["--rate", "10", "--clients", "2"],
            &["--clients", "0"],
            &["--seconds", "0"],
            &["--tokens", "8", "--ragged"],
            &["--texts", "0"],
            &["--batching", "32"],
            &["--batching", "0:5"],
            &["--batching", "8:-1"],
            &["--placement", "best"],
            &["--simulated-gpus", "0"],
            &["--simulated-gpus", "1:2:3:4"],
            &["--simulated-gpus", "1:0"],
            &["--simulated-gpus", "1::nan"],
            &["--deadline-ms", "0"],
        ]
        .iter()
        .map(|args| first_line(args))
        .collect();
        expect![[r#"
            error: invalid value 'fast' for '--rate <R,..>': 'fast' is not a number
            error: invalid value '0' for '--rate <R,..>': use 0.1 to 1000000 requests a second
            error: invalid value '1e9' for '--rate <R,..>': use 0.1 to 1000000 requests a second
            error: the argument '--rate <R,..>' cannot be used with '--clients <N,..>'
            error: invalid value '0' for '--clients <N,..>': 0 is not in 1..=65536
            error: invalid value '0' for '--seconds <S>': use 0.01 to 3600 seconds
            error: the argument '--tokens <N>' cannot be used with '--ragged'
            error: invalid value '0' for '--texts <N>': 0 is not in 1..=4096
            error: invalid value '32' for '--batching <HOW,..>': '32' is neither 'adaptive' nor TEXTS:TIMEOUT_MS, such as 32:5
            error: invalid value '0:5' for '--batching <HOW,..>': use 1 to 65536 texts and 0 to 10000 ms
            error: invalid value '8:-1' for '--batching <HOW,..>': use 1 to 65536 texts and 0 to 10000 ms
            error: invalid value 'best' for '--placement <HOW,..>': 'best' is neither 'weighted' nor 'round-robin'
            error: invalid value '0' for '--simulated-gpus <N[:MB[:SPEED]],..>': use 1 to 16 simulated GPUs
            error: invalid value '1:2:3:4' for '--simulated-gpus <N[:MB[:SPEED]],..>': '1:2:3:4' is not N[:MB[:SPEED]], such as 2, 2:512 or 1::4
            error: invalid value '1:0' for '--simulated-gpus <N[:MB[:SPEED]],..>': use at least 1 MB, and speeds from 0.001 to 1000
            error: invalid value '1::nan' for '--simulated-gpus <N[:MB[:SPEED]],..>': use at least 1 MB, and speeds from 0.001 to 1000
            error: invalid value '0' for '--deadline-ms <MS>': 0 is not in 1..=3600000
        "#]].assert_eq(&(refused.join("\n") + "\n"));
    }
}
