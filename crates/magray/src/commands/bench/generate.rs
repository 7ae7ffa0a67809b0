//! `magray bench generate`: how fast this machine goes on with texts, through the engine and its queue as a server does it.
//! Takes the likeliest token each time; prompts are made up, and no two begin alike but where that is asked for.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use magray_engine::{
    decoder::{Constraint, SPECULATE_MAX, Sampling},
    engine::{Engine, Prompt, Speculation, TokenStream},
    synthetic::{self, Lengths, Vocabulary},
};
use serde::Serialize;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    commands::{Context, compute_args::ComputeArgs, constraint_args::read_schema},
    config::Source,
    exit::Failure,
    output::{self, aligned},
    session::{FIRST, Session},
};

const EXAMPLES: &str = "\
Examples:
  magray bench generate -m smollm2.gguf                        1 and 8 streams of 128 new tokens
  magray bench generate -m synthetic:llama-1b --streams 1,8,32 a published shape with random weights
  magray bench generate -m model.gguf --prompt-tokens 2000 --new-tokens 1 --json
  magray bench generate -m model.gguf --prompt-tokens 1030 --known-tokens 1024 --new-tokens 1

Each case is run once before it is timed. tokens/s adds up the rates of all streams, \
each from the moment when the last one has its first token to its own last token.";

/// Prompts of a text begin this many tokens apart.
const TEXT_STEP: usize = 131;
/// More of a text than any context has.
const TEXT_BYTES_MAX: u64 = 8 << 20;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchGenerateArgs {
    #[command(flatten)]
    compute: ComputeArgs,
    /// Streams side by side; several numbers make several cases
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,8",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    streams: Vec<u32>,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: u32,
    /// New tokens of each stream; fewer where a constraint ends an answer
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    new_tokens: u32,
    /// Times that each case is run; the table shows the median by tokens/s
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Write JSON of this schema: a file, or the schema itself
    #[arg(long, value_name = "FILE|TEXT")]
    json_schema: Option<String>,
    /// Let all prompts begin with the same tokens, this many: the warm-up makes them known
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "prompt_file")]
    known_tokens: u32,
    /// Let a prompt of this many tokens arrive among the streams when all of them have begun
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    long_prompt: Option<u32>,
    /// Draw tokens by this temperature instead of taking the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Propose this many tokens for each pass from what the text has, 0 to 15
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=i64::from(SPECULATE_MAX)))]
    speculate: u8,
    /// Go on with this text, as many times as it takes to fill the prompt, in place of made-up tokens
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Print one JSON object a case
    #[arg(long)]
    json: bool,
}

/// One measured case; the names are those of `--json`.
#[derive(Clone, Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    streams: usize,
    prompt_tokens: usize,
    new_tokens: usize,
    /// `None` where streams were too short to have been side by side.
    tokens_per_s: Option<f64>,
    /// From the request to its first token: the median of all streams, and of all rounds.
    first_token_ms: f64,
    /// From a token to the next one of its stream.
    gap_p50_ms: f64,
    gap_p99_ms: f64,
    gap_max_ms: f64,
    /// From the first request to the last token.
    total_s: f64,
    /// Tokens that were proposed for passes, and those of them that the model chose.
    proposed: u64,
    accepted: u64,
}

pub(crate) fn run(args: &BenchGenerateArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.compute.flags())?;
    if config.entry("model.name").source == Source::Default {
        return Err(Failure::Usage(
            "name a language model: -m FILE.gguf, -m FOLDER or -m synthetic:llama-1b".to_owned(),
        ));
    }
    let session = Session::open(&config, None, &context.console)?;
    let spec = session.spec();
    if spec.generates().is_none() {
        return Err(Failure::Usage("this model generates no text: use a language model".to_owned()));
    }
    let new = args.new_tokens as usize;
    let prompt = args.prompt_tokens.max(args.long_prompt.unwrap_or(0)) as usize;
    if args.known_tokens >= args.prompt_tokens {
        return Err(Failure::Usage("--known-tokens: a prompt has more tokens than are known of it".to_owned()));
    }
    if prompt + new > spec.max_tokens {
        let most = spec.max_tokens;
        return Err(Failure::Usage(format!("{prompt} tokens and {new} new ones: this model has a context of {most}")));
    }
    let text = match &args.prompt_file {
        None => None,
        Some(path) => Some(read_ids(path, session.engine())?),
    };
    let constraint = args.json_schema.as_deref().map(read_schema).transpose()?.map(Constraint::JsonSchema);
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(Failure::Thread)?;
    let vocabulary = Vocabulary { size: spec.shape.vocab, tokens_max: spec.max_tokens };
    let name = config.model()?.name;
    let mut reports = Vec::new();
    let mut seed = 0;
    for streams in &args.streams {
        let mut rounds = Vec::new();
        for round in 0..=args.rounds {
            let mut prompt = |tokens| {
                seed += 1;
                let prompt = args.prompt(&vocabulary, text.as_deref(), tokens, seed);
                Prompt { sampling: args.sampling(seed, constraint.clone()), ..prompt }
            };
            let prompts = (0..*streams).map(|_| prompt(args.prompt_tokens)).collect();
            let long = args.long_prompt.map(|tokens| Prompt { new_tokens_max: 1, ..prompt(tokens) });
            let run = runtime.block_on(Run::take(session.engine(), prompts, long))?;
            if round > 0 {
                rounds.push(run);
            }
        }
        // Where streams have one token each, none has a rate.
        rounds.sort_by(|a, b| a.tokens_per_s().total_cmp(&b.tokens_per_s()).then(b.took().cmp(&a.took())));
        let firsts = sorted(rounds.iter().map(Run::first_token));
        let first_token_ms = percentile(&firsts, 0.5);
        let report = Report { first_token_ms, ..rounds[rounds.len() / 2].report(&name, args) };
        if args.json {
            let line = serde_json::to_string(&report).unwrap_or_else(|error| unreachable!("plain numbers: {error}"));
            output::print(&(line + "\n"))?;
        }
        reports.push(report);
    }
    if !args.json {
        output::print(&table(&reports))?;
    }
    session.leave();
    Ok(())
}

impl BenchGenerateArgs {
    /// A prompt of made-up tokens; its seed makes it another one from its first token on, or behind those that are known.
    fn prompt(&self, vocabulary: &Vocabulary, text: Option<&[u32]>, tokens: u32, seed: u32) -> Prompt {
        if let Some(text) = text {
            let from = seed as usize * TEXT_STEP % text.len();
            let ids = text.iter().copied().cycle().skip(from).take(tokens as usize).collect();
            return Prompt { model: FIRST, ids, new_tokens_max: self.new_tokens, ..Prompt::default() };
        }
        let mut ids = synthetic::batch(1, Lengths::Equal(tokens as usize), vocabulary).remove(0);
        for (at, id) in (0..).zip(&mut ids) {
            let seed = if at < self.known_tokens { 0 } else { seed };
            *id = (*id + seed.wrapping_mul(7919) + at % 13) % vocabulary.size as u32;
        }
        Prompt { model: FIRST, ids, new_tokens_max: self.new_tokens, ..Prompt::default() }
    }

    fn sampling(&self, seed: u32, constraint: Option<Constraint>) -> Sampling {
        Sampling {
            temperature: self.temperature,
            ignores_end: constraint.is_none(),
            seed: u64::from(seed),
            speculate: Some(self.speculate),
            constraint,
            ..Sampling::default()
        }
    }
}

/// When the tokens of streams came that ran side by side.
struct Run {
    /// By stream, since the first request.
    tokens: Vec<Vec<Duration>>,
    device: String,
    speculation: Speculation,
}

impl Run {
    /// Reads all streams to their ends. The long prompt comes when each has its first token, and is not counted.
    async fn take(engine: &Engine, prompts: Vec<Prompt>, long: Option<Prompt>) -> Result<Self, Failure> {
        let started = Instant::now();
        let streams = prompts.into_iter().map(|prompt| engine.generate(prompt)).collect::<Result<Vec<_>, _>>()?;
        let begun = Arc::new(Semaphore::new(0));
        let count = streams.len() as u32;
        let read = |mut stream: TokenStream| {
            let begun = Arc::clone(&begun);
            async move {
                let mut times = Vec::new();
                let mut ended = Ok(());
                while let Some(token) = stream.next().await {
                    if times.is_empty() {
                        begun.add_permits(1);
                    }
                    times.push(started.elapsed());
                    ended = ended.and(token.map(drop));
                }
                ended?;
                let device = stream.answer().map(|answer| answer.device.to_string());
                Ok::<_, Failure>((times, device.unwrap_or_default(), stream.speculation()))
            }
        };
        let mut reading: JoinSet<_> = streams.into_iter().map(read).collect();
        if let Some(long) = long {
            // All have begun, or none can any more.
            drop(begun.acquire_many(count).await);
            let mut stream = engine.generate(long)?;
            while let Some(token) = stream.next().await {
                token?;
            }
        }
        let mut ended = Vec::new();
        while let Some(one) = reading.join_next().await {
            ended.push(one.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?);
        }
        let mut devices: Vec<String> = ended.iter().map(|(_, device, _)| device.clone()).collect();
        devices.sort_unstable();
        devices.dedup();
        let mut speculation = Speculation::default();
        for (_, _, one) in &ended {
            speculation.proposed += one.proposed;
            speculation.accepted += one.accepted;
        }
        let tokens = ended.into_iter().map(|(times, ..)| times).collect();
        Ok(Self { tokens, device: devices.join(", "), speculation })
    }

    /// New tokens a second of all streams together, each from the moment when all had begun to its own last token; 0 where one had
    /// ended by then. Tokens arrive in bursts, which are read one stream after the other: an end for all would cut the last burst in two.
    fn tokens_per_s(&self) -> f64 {
        let begun = self.tokens.iter().filter_map(|times| times.first()).max().copied().unwrap_or_default();
        let rate = |times: &Vec<Duration>| {
            let took = times.last()?.checked_sub(begun).filter(|took| !took.is_zero())?;
            Some(times.iter().filter(|time| **time > begun).count() as f64 / took.as_secs_f64())
        };
        self.tokens.iter().map(rate).sum::<Option<f64>>().unwrap_or(0.0)
    }

    /// From the first request to the last token.
    fn took(&self) -> Duration {
        self.tokens.iter().flatten().max().copied().unwrap_or_default()
    }

    /// From the first request to the first token, the median of its streams.
    fn first_token(&self) -> Duration {
        let firsts = sorted(self.tokens.iter().filter_map(|times| times.first().copied()));
        firsts.get(firsts.len() / 2).copied().unwrap_or_default()
    }

    fn report(&self, model: &str, args: &BenchGenerateArgs) -> Report {
        let gaps = self.tokens.iter().flat_map(|times| times.windows(2).map(|pair| pair[1] - pair[0]));
        let gaps = sorted(gaps);
        Report {
            model: model.to_owned(),
            device: self.device.clone(),
            streams: self.tokens.len(),
            prompt_tokens: args.prompt_tokens as usize,
            new_tokens: args.new_tokens as usize,
            tokens_per_s: Some(self.tokens_per_s()).filter(|rate| *rate > 0.0),
            first_token_ms: self.first_token().as_secs_f64() * 1e3,
            gap_p50_ms: percentile(&gaps, 0.5),
            gap_p99_ms: percentile(&gaps, 0.99),
            gap_max_ms: percentile(&gaps, 1.0),
            total_s: self.took().as_secs_f64(),
            proposed: self.speculation.proposed,
            accepted: self.speculation.accepted,
        }
    }
}

/// The tokens of a text, which are to fill prompts.
fn read_ids(path: &Path, engine: &Engine) -> Result<Vec<u32>, Failure> {
    let wrong = |reason: String| Failure::Usage(format!("{}: {reason}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    let read = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| wrong(error.to_string()))?;
    let ids = engine.read_prompt(FIRST, &text)?;
    if ids.is_empty() { Err(wrong("it has no tokens".to_owned())) } else { Ok(ids) }
}

fn sorted(times: impl Iterator<Item = Duration>) -> Vec<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times
}

/// Of sorted times, in milliseconds; 0 of none.
fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let at = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn table(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let head = ["streams", "tokens/s", "first token ms", "gap p50 ms", "gap p99 ms", "max", "total s"];
    let cells = |report: &Report| {
        vec![
            report.streams.to_string(),
            report.tokens_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
            format!("{:.2}", report.first_token_ms),
            format!("{:.3}", report.gap_p50_ms),
            format!("{:.3}", report.gap_p99_ms),
            format!("{:.3}", report.gap_max_ms),
            format!("{:.3}", report.total_s),
        ]
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(head.map(str::to_owned).to_vec()).chain(reports.iter().map(cells)).collect();
    let Report { model, device, prompt_tokens, new_tokens, .. } = first;
    let speculated = reports.iter().filter(|report| report.proposed > 0).map(|report| {
        let Report { streams, proposed, accepted, .. } = report;
        format!("\n{streams}: {proposed} tokens were proposed, {accepted} accepted\n")
    });
    let speculated: String = speculated.collect();
    format!("{model} on {device}, {prompt_tokens} tokens of prompt, {new_tokens} new\n\n{}{speculated}", aligned(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn run(tokens: &[&[u64]]) -> Run {
        let times = |stream: &&[u64]| stream.iter().map(|ms| Duration::from_millis(*ms)).collect();
        Run {
            tokens: tokens.iter().map(times).collect(),
            device: "cpu".to_owned(),
            speculation: Speculation::default(),
        }
    }

    #[test]
    fn tokens_count_while_all_streams_run() {
        let both = run(&[&[10, 20, 30, 40], &[20, 30, 40, 50, 60]]);
        assert!((both.tokens_per_s() - 200.0).abs() < 1e-9, "{}", both.tokens_per_s());
        assert!(run(&[&[10], &[20]]).tokens_per_s().abs() < 1e-9, "they were never side by side");
        let bursts = run(&[&[0, 100, 100, 200, 200], &[0, 100, 100, 201, 201]]);
        assert!((bursts.tokens_per_s() - 40.0).abs() < 0.2, "{}", bursts.tokens_per_s());
    }

    #[test]
    fn the_table_lines_up() {
        let report = Report {
            model: "tiny".to_owned(),
            device: "cpu".to_owned(),
            streams: 8,
            prompt_tokens: 128,
            new_tokens: 64,
            tokens_per_s: Some(1234.56),
            first_token_ms: 12.345,
            gap_p50_ms: 1.5,
            gap_p99_ms: 2.25,
            gap_max_ms: 4.0,
            total_s: 0.5,
            proposed: 0,
            accepted: 0,
        };
        let alone = Report { streams: 1, tokens_per_s: None, ..report.clone() };
        expect![[r#"
            tiny on cpu, 128 tokens of prompt, 64 new

            streams  tokens/s  first token ms  gap p50 ms  gap p99 ms  max    total s
            8        1234.6    12.35           1.500       2.250       4.000  0.500
            1        -         12.35           1.500       2.250       4.000  0.500
        "#]]
        .assert_eq(&table(&[report, alone]));
    }
}
