//! `magray generate TEXT`: goes on with a text by a language model.
//! A bare completion: no template, no roles, no history.

mod written;

use std::io::{IsTerminal, Read};

use clap::Args;
use magray_engine::decoder::{Sampling, TOP_LOGPROBS_MAX};
use serde_json::Value;
use written::Written;

use super::Context;
use crate::{
    commands::{compute_args::ComputeArgs, constraint_args::ConstraintArgs, sampling_args::SamplingArgs},
    config::Source,
    exit::Failure,
    generation::{ANSWERS_MAX, Job, JobInput, SideBySide, TokensMax, Urgency},
    output,
    session::{FIRST, Session},
};

const EXAMPLES: &str = "\
Examples:
  magray generate -m smollm2.gguf \"The capital of France is\"
  magray generate -m ./Qwen3-0.6B --temperature 0.8 --top-p 0.95 --seed 7 -n 200 \"Once upon a time\"
  echo \"def add(a, b):\" | magray generate -m coder.gguf --stop \"\\n\\n\"
  magray generate -m smollm2.gguf --json --logprobs 3 \"1, 2, 3,\"
  magray generate -m smollm2.gguf --choice yes --choice no \"Is the sky blue?\"
  magray generate -m smollm2.gguf --json-schema person.json \"Describe a person:\"

MODEL is a GGUF file, or a folder with config.json, tokenizer.json and safetensors.
Without --temperature the likeliest token is taken each time.";

/// Texts on stdin are read up to this size; no context is longer.
const STDIN_BYTES_MAX: u64 = 64 << 20;
/// New tokens where nothing is said.
const TOKENS: u32 = 128;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GenerateArgs {
    /// The text to go on with [default: what stdin has]
    text: Option<String>,
    #[command(flatten)]
    compute: ComputeArgs,
    /// New tokens at most [default: 128, or what the context leaves]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    constraint: ConstraintArgs,
    /// End before this text; may be given several times. \n and \t mean what they do in programs
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on when the model ends its answer
    #[arg(long)]
    ignore_end: bool,
    /// Several answers; each draws by the next seed, and --json prints an array
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ANSWERS_MAX)))]
    answers: Option<u32>,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
    /// With --json: the log probability of each token, and the N likeliest in its place, up to 20
    #[arg(long, value_name = "N", requires = "json", value_parser = clap::value_parser!(u8).range(..=i64::from(TOP_LOGPROBS_MAX)))]
    logprobs: Option<u8>,
}

pub(crate) fn run(args: &GenerateArgs, context: &Context) -> Result<(), Failure> {
    let config = context.settle(&args.compute.flags())?;
    if config.entry("model.name").source == Source::Default {
        return Err(Failure::Usage("name a language model: -m FILE.gguf or -m FOLDER".to_owned()));
    }
    let text = match &args.text {
        Some(text) => text.clone(),
        None => read_stdin()?,
    };
    let session = Session::open(&config, None, &context.console)?;
    let engine = session.engine();
    let Some(vocabulary) = engine.vocabulary(FIRST) else {
        return Err(Failure::Usage("this model generates no text: use a language model".to_owned()));
    };
    let constraint = args.constraint.constraint()?;
    let sampling = Sampling { logprobs: args.logprobs, constraint, ..args.sampling.sampling(args.ignore_end, 0.0) };
    let job = Job {
        model: FIRST,
        input: JobInput::Text(text),
        sampling,
        stops: args.stop.iter().map(|stop| unescape(stop)).collect(),
        answers: args.answers.unwrap_or(1),
        tokens_max: args.max_tokens.map_or(TokensMax::UpTo(TOKENS), TokensMax::Exactly),
    };
    let prepared = job.prepare(engine, None)?;
    let is_printed = !args.json && args.answers.is_none_or(|answers| answers == 1);
    let mut answers: Vec<_> = (0..args.answers.unwrap_or(1))
        .map(|answer| Written::new(vocabulary, prepared.seed(answer), is_printed))
        .collect();
    let mut streams = SideBySide::new(prepared.begin(engine, Urgency::default())?);
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(Failure::Thread)?;
    runtime.block_on(async {
        while let Some((answer, event)) = streams.next().await {
            answers[answer].add(event?)?;
        }
        Ok::<(), Failure>(())
    })?;
    let prompt_tokens = prepared.prompt_tokens();
    if args.json {
        let mut objects = answers.iter().map(|written| written.object(prompt_tokens)).collect::<Vec<Value>>();
        let printed = match args.answers {
            None => objects.remove(0),
            Some(_) => Value::Array(objects),
        };
        output::print(&format!("{printed}\n"))?;
    } else {
        for (place, written) in answers.iter().enumerate() {
            if !is_printed {
                output::print(if place == 0 { "" } else { "\n" })?;
                written.print()?;
            }
            output::print("\n")?;
            context.console.detail(format_args!("{prompt_tokens} tokens of prompt, {}", written.summary()));
        }
    }
    session.leave();
    Ok(())
}

fn read_stdin() -> Result<String, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::Usage("give a text to go on with, or pipe one in".to_owned()));
    }
    let mut bytes = Vec::new();
    let read = stdin.lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|reason| Failure::Usage(format!("cannot read stdin: {reason}")))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(Failure::Usage(format!("stdin has more than {STDIN_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        Failure::Usage(format!("stdin is not valid UTF-8 from byte {} on", error.utf8_error().valid_up_to()))
    })
}

/// `\n`, `\t` and `\\` as they are meant.
fn unescape(text: &str) -> String {
    text.replace("\\\\", "\u{0}").replace("\\n", "\n").replace("\\t", "\t").replace('\u{0}', "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_stops_are_read() {
        assert_eq!(unescape(r"a\n\tb\\n"), "a\n\tb\\n");
    }
}
