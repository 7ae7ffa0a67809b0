//! `magray generate TEXT`: goes on with a text by a language model.
//! A bare completion: no template, no roles, no history.

use std::{
    io::{IsTerminal, Read},
    time::{Duration, Instant},
};

use clap::Args;
use magray_engine::{
    decoder::{Sampling, TextBuilder},
    engine::{Answer, Prompt, TokenStream},
    tokenize::Vocabulary,
};

use super::Context;
use crate::{
    commands::compute_args::ComputeArgs,
    config::Source,
    exit::Failure,
    output,
    session::{FIRST, Session},
};

const EXAMPLES: &str = "\
Examples:
  magray generate -m smollm2.gguf \"The capital of France is\"
  magray generate -m ./Qwen3-0.6B --temperature 0.8 --top-p 0.95 --seed 7 -n 200 \"Once upon a time\"
  echo \"def add(a, b):\" | magray generate -m coder.gguf --stop \"\\n\\n\"
  magray generate -m smollm2.gguf --json \"1, 2, 3,\"

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
    /// End before this text; may be given several times. \n and \t mean what they do in programs
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on when the model ends its answer
    #[arg(long)]
    ignore_end: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// How tokens are chosen.
#[derive(Debug, Args)]
struct SamplingArgs {
    /// Draw tokens, the likelier the lower; 0 takes the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Draw of this many likeliest tokens; 0: of all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Draw of the likeliest tokens that have this probability together
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Draw of tokens with at least this part of the highest probability
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,
    /// Divide the logits of tokens that the text has
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Taken from a token's logit for each time it was chosen
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Taken from the logit of a token that was chosen
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// The same seed draws the same tokens [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    fn sampling(&self, ignores_end: bool) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            ignores_end,
            seed: self.seed.unwrap_or_else(rand_seed),
            ..Sampling::default()
        }
    }
}

/// A seed that differs from run to run.
fn rand_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
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
    let ids = engine.read_prompt(FIRST, &text)?;
    let left = session.spec().max_tokens.saturating_sub(ids.len()).clamp(1, TOKENS as usize) as u32;
    let (prompt_tokens, seed) = (ids.len(), args.sampling.sampling(args.ignore_end));
    let prompt = Prompt {
        model: FIRST,
        ids,
        new_tokens_max: args.max_tokens.unwrap_or(left),
        sampling: seed,
        ..Prompt::default()
    };
    let seed = prompt.sampling.seed;
    let stops: Vec<String> = args.stop.iter().map(|stop| unescape(stop)).collect();
    let mut written = Written::new(vocabulary, &stops, !args.json);
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(Failure::Thread)?;
    let answer = runtime.block_on(written.take_all(engine.generate(prompt)?))?;
    let device = answer.as_ref().map(|answer| answer.device.to_string());
    let generated = written.ids.len();
    let rate = written.rate();
    if args.json {
        let object = serde_json::json!({
            "text": written.text, "ids": written.ids, "prompt_tokens": prompt_tokens, "tokens": generated,
            "finish_reason": written.finish_reason(&session), "device": device, "seed": seed,
            "first_token_ms": written.first.map(|first| first.as_secs_f64() * 1000.0), "tokens_per_s": rate,
        });
        output::print(&format!("{object}\n"))?;
    } else {
        output::print("\n")?;
        let rate = rate.map_or_else(String::new, |rate| format!(", {rate:.1}/s"));
        let place = device.map_or_else(String::new, |device| format!(" on {device}"));
        context.console.detail(format_args!("{prompt_tokens} tokens of prompt, {generated} new{rate}{place}"));
    }
    session.leave();
    Ok(())
}

/// What has come so far.
struct Written<'a> {
    vocabulary: &'a Vocabulary,
    builder: TextBuilder,
    /// Whether it is printed as it comes.
    is_printed: bool,
    is_terminal: bool,
    ids: Vec<u32>,
    text: String,
    started: Instant,
    first: Option<Duration>,
    last: Option<Duration>,
}

impl<'a> Written<'a> {
    fn new(vocabulary: &'a Vocabulary, stops: &[String], is_printed: bool) -> Self {
        let (ids, text, builder) = (Vec::new(), String::new(), TextBuilder::new(stops));
        let (is_terminal, started) = (std::io::stdout().is_terminal(), Instant::now());
        Self { vocabulary, builder, is_printed, is_terminal, ids, text, started, first: None, last: None }
    }

    async fn take_all(&mut self, mut stream: TokenStream) -> Result<Option<Answer>, Failure> {
        while let Some(token) = stream.next().await {
            let token = token?;
            self.last = Some(self.started.elapsed());
            self.first = self.first.or(self.last);
            self.ids.push(token);
            if !self.vocabulary.is_control(token) {
                let text = self.builder.push(self.vocabulary.bytes(token));
                self.write(text)?;
            }
            if self.builder.has_ended() {
                break;
            }
        }
        let text = self.builder.finish();
        self.write(text)?;
        Ok(stream.answer())
    }

    fn write(&mut self, text: String) -> Result<(), Failure> {
        if self.is_printed && !text.is_empty() {
            // What a model says must not steer a terminal.
            let is_shown =
                |character: &char| !self.is_terminal || !character.is_control() || "\n\t".contains(*character);
            output::print(&text.chars().filter(is_shown).collect::<String>())?;
        }
        self.text += &text;
        Ok(())
    }

    /// New tokens a second after the first.
    fn rate(&self) -> Option<f64> {
        let took = (self.last? - self.first?).as_secs_f64();
        (took > 0.0).then(|| (self.ids.len() - 1) as f64 / took)
    }

    fn finish_reason(&self, session: &Session) -> &'static str {
        let ends = session.spec().generates().map(|generate| &generate.ends[..]).unwrap_or_default();
        match self.ids.last() {
            _ if self.builder.has_ended() => "stop",
            Some(last) if ends.contains(last) => "stop",
            _ => "length",
        }
    }
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
